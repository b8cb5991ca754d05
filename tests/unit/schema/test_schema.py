from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemerge.errors import FrameError, SchemaError
from lakemerge.schema import schema as schemas
from mergers.type_names import type_name

UTC = pa.timestamp("us", "UTC")
NTZ = pa.timestamp("us")


def build(*columns: Any) -> pa.Schema:
    return pa.schema(list(columns))


def list_of(kind: Any, *, nullable: bool = True) -> Any:
    return pa.list_(pa.field("element", kind, nullable=nullable))


def map_of(key: Any, value: Any, *, nullable: bool = True) -> Any:
    return pa.map_(key, pa.field("value", value, nullable=nullable))


def array(values: list[Any], kind: Any) -> Any:
    return pa.array(values, kind)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (pa.bool_(), "BOOLEAN"),
        (pa.int8(), "TINYINT"),
        (pa.int64(), "BIGINT"),
        (pa.float32(), "FLOAT"),
        (pa.decimal128(10, 2), "DECIMAL(10,2)"),
        (pa.binary(), "BINARY"),
        (UTC, "TIMESTAMP"),
        (NTZ, "TIMESTAMP_NTZ"),
        (pa.null(), "VOID"),
        (pa.list_(pa.map_(pa.string(), pa.int32())), "ARRAY<MAP<STRING, INT>>"),
        (pa.struct([("x y", pa.date32()), ("z", pa.uint8())]), "STRUCT<`x y`: DATE, z: uint8>"),
        (pa.timestamp("us", "Europe/Oslo"), "timestamp[us, tz=Europe/Oslo]"),
        (pa.large_string(), "large_string"),
    ],
    ids=str,
)
def test_messages_have_sql_names_of_types(kind: pa.DataType, name: str) -> None:
    assert type_name(kind) == name


# DDL


def test_ddl_with_every_part() -> None:
    found = schemas.to_arrow_schema(
        "id BIGINT NOT NULL COMMENT 'it\\'s \"x\"', `a ``b` decimal(10, 2), m MAP<STRING,INT>,"
        ' s STRUCT<x: INT NOT NULL COMMENT "deep", `y z` ARRAY<ARRAY<STRING>>>, t: timestamp_ntz'
    )
    inner = pa.struct(
        [
            pa.field("x", pa.int32(), nullable=False, metadata={"comment": "deep"}),
            pa.field("y z", list_of(list_of(pa.string()))),
        ]
    )
    expected = build(
        pa.field("id", pa.int64(), nullable=False, metadata={"comment": 'it\'s "x"'}),
        pa.field("a `b", pa.decimal128(10, 2)),
        pa.field("m", map_of(pa.string(), pa.int32())),
        pa.field("s", inner),
        pa.field("t", NTZ),
    )
    assert found.equals(expected, check_metadata=True)


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        ("boolean", pa.bool_()),
        ("byte tinyint", pa.int8()),
        ("short smallint", pa.int16()),
        ("int integer", pa.int32()),
        ("long bigint", pa.int64()),
        ("float real", pa.float32()),
        ("double", pa.float64()),
        ("decimal dec numeric DECIMAL(10) dec(10,0)", pa.decimal128(10, 0)),
        ("numeric(38,38)", pa.decimal128(38, 38)),
        ("string", pa.string()),
        ("binary", pa.binary()),
        ("date", pa.date32()),
        ("timestamp timestamp_ltz", UTC),
        ("timestamp_ntz", NTZ),
    ],
)
def test_every_type_name(names: str, kind: Any) -> None:
    for name in names.split():
        assert schemas.to_arrow_schema(f"c {name.upper()}").field("c").type == kind
        assert schemas.to_arrow_schema(f"c {name.lower()}").field("c").type == kind


@pytest.mark.parametrize(
    ("ddl", "position"),
    [
        ("id", 3),
        ("id BIGINTT", 4),
        ("id INT,", 8),
        ("id INT, , x INT", 9),
        ("id INT x INT", 8),
        ("id INT NOT x", 12),
        ("id INT COMMENT x", 16),
        ("id ARRAY<INT", 13),
        ("id MAP<INT>", 11),
        ("id DECIMAL(39, 1)", 4),
        ("id DECIMAL(5, 6)", 4),
        ("id DECIMAL(1, 1, 1)", 4),
        ("id DECIMAL(x)", 12),
        ("id VARCHAR", 11),
        ("a-b INT", 2),
        ("`` INT", 1),
        ("id INT COMMENT 'open", 16),
        ("", 1),
    ],
)
def test_syntax_errors_point_at_their_place(ddl: str, position: int) -> None:
    with pytest.raises(SchemaError) as caught:
        schemas.to_arrow_schema(ddl)
    assert caught.value.facts["position"] == position, str(caught.value)


def test_texts_of_bounded_length() -> None:
    """In every way to define a table, as Spark and Delta note them."""
    parsed = schemas.to_arrow_schema("id BIGINT, a VARCHAR(3) NOT NULL COMMENT 'x', b CHAR(2), c CHARACTER(1)")
    noted = [(field.metadata or {}).get(b"__CHAR_VARCHAR_TYPE_STRING") for field in parsed]
    assert noted == [None, b"varchar(3)", b"char(2)", b"char(1)"]
    assert [str(field.type) for field in parsed] == ["int64", "string", "string", "string"]
    assert (parsed.field("a").metadata or {})[b"comment"] == b"x"
    written = json.loads(schemas.to_delta_json(parsed))["fields"][1]
    assert written["type"] == "string"
    assert written["metadata"] == {"comment": "x", "__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}
    assert schemas.from_delta_json(schemas.to_delta_json(parsed)).equals(parsed, check_metadata=True)

    class Struct:
        """As Spark's, with a type of its own, or with the note that Spark keeps of such a type."""

        def __init__(self, kind: str, note: dict[str, str]) -> None:
            self.field = {"name": "a", "type": kind, "nullable": True, "metadata": note}

        def json(self) -> str:
            return json.dumps({"type": "struct", "fields": [self.field]})

    note = {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)", "comment": "code"}
    for schema, told in ((Struct("char(3)", {}), b"char(3)"), (Struct("string", note), b"varchar(3)")):
        found = schemas.to_arrow_schema(schema).field("a")
        assert (found.metadata or {})[b"__CHAR_VARCHAR_TYPE_STRING"] == told
    # A frame's values are texts like all others.
    for struct in (Struct("char(3)", {}), Struct("string", note)):
        (field,) = schemas.from_delta_json(struct.json(), of_frame=True)
        assert field.type == pa.string()
        assert set(field.metadata or {}) <= {b"comment"}


def test_lengths_that_no_write_would_see_to() -> None:
    noted = pa.field("a", pa.string(), metadata={"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"})
    for schema, told in (
        ("a ARRAY<VARCHAR(3)>", r"VARCHAR\(3\): only whole columns have lengths"),
        ("a VARCHAR(0)", "one number from 1 on"),
        ("a STRUCT<c: CHAR(2)>", r"a\.c: only whole columns can be CHAR\(2\)"),
        (pa.schema([pa.field("s", pa.struct([noted]))]), r"s\.a: only whole columns can be VARCHAR\(3\)"),
        (pa.schema([noted.with_type(pa.int64())]), r"cannot hold VARCHAR\(3\) as BIGINT"),
        (pa.schema([noted.with_metadata({"__CHAR_VARCHAR_TYPE_STRING": "text"})]), "cannot hold TEXT"),
    ):
        with pytest.raises(SchemaError, match=told):
            schemas.to_arrow_schema(schema)


def test_refused_ddl_types_are_all_named() -> None:
    with pytest.raises(SchemaError) as caught:
        schemas.to_arrow_schema(
            "a VARIANT, b INTERVAL DAY TO SECOND NOT NULL, c VOID, d ARRAY<TIME(6)>, e STRING COLLATE UNICODE, f INT"
        )
    problems: Any = caught.value.facts["problems"]
    assert [text.split(",")[0] for text in problems] == [f"column '{c}'" for c in "abcde"]
    for text, word in zip(problems, ["VARIANT", "INTERVAL", "VOID", "TIME", "collated"], strict=True):
        assert word in text


# Arrow schemas


def test_other_forms_of_the_same_values_become_canonical() -> None:
    found = schemas.to_arrow_schema(
        build(
            pa.field("a", pa.large_string(), nullable=False, metadata={"comment": "c", "PARQUET:field_id": "3"}),
            ("b", pa.string_view()),
            ("c", pa.dictionary(pa.int8(), pa.large_string())),
            ("d", pa.timestamp("ms", "Europe/Oslo")),
            ("e", pa.timestamp("s")),
            ("f", pa.large_list(pa.field("item", pa.large_binary(), nullable=False))),
            ("g", pa.map_(pa.large_string(), pa.date64())),
            ("h", pa.struct([pa.field("x", pa.list_(pa.float16(), 2), metadata={"comment": "in"})])),
            ("i", pa.binary(4)),
            ("j", pa.decimal64(5, 1)),
        )
    )
    expected = build(
        pa.field("a", pa.string(), nullable=False, metadata={"comment": "c"}),
        ("b", pa.string()),
        ("c", pa.string()),
        ("d", UTC),
        ("e", NTZ),
        ("f", list_of(pa.binary(), nullable=False)),
        ("g", map_of(pa.string(), pa.date32())),
        ("h", pa.struct([pa.field("x", list_of(pa.float32()), metadata={"comment": "in"})])),
        ("i", pa.binary()),
        ("j", pa.decimal128(5, 1)),
    )
    assert found.equals(expected, check_metadata=True)
    inner: Any = found.field("f").type
    assert inner.value_field.name == "element"
    assert schemas.to_arrow_schema(found).equals(found, check_metadata=True)


def test_all_problems_of_a_schema_in_one_error() -> None:
    with pytest.raises(SchemaError) as caught:
        schemas.to_arrow_schema(
            build(
                pa.field("u", pa.uint32(), nullable=False),
                ("s", pa.struct([("t", pa.time64("us")), ("l", pa.list_(pa.duration("s")))])),
                ("n", pa.timestamp("ns")),
                ("d", pa.decimal256(50, 2)),
                ("z", pa.null()),
                ("e", pa.struct([])),
                ("tensor", pa.fixed_shape_tensor(pa.int8(), [2])),
                ("_LM_pos", pa.int64()),
                ("A", pa.int8()),
                ("a", pa.int8()),
                ("m", pa.map_(pa.string(), pa.struct([("x", pa.int8()), ("X", pa.int8())]))),
            )
        )
    text = str(caught.value)
    places = ["u: ", "s.t: ", "s.l.element: ", "n: ", "d: ", "z: ", "e: ", "tensor: ", "'_LM_pos'", "'a' and 'A'"]
    problems: Any = caught.value.facts["problems"]
    assert len(problems) == len(places) + 1
    for problem, place in zip(problems, [*places, "'m.value.X' and 'm.value.x'"], strict=True):
        assert problem.startswith(place)
    for remedy in ["cast it to BIGINT", "microseconds", "storage type"]:
        assert remedy in text


def test_what_is_no_schema() -> None:
    wrong: Any = 5
    for given_ in (wrong, build()):
        with pytest.raises(SchemaError):
            schemas.to_arrow_schema(given_)
    with pytest.raises(SchemaError, match="c: its metadata"):
        schemas.to_arrow_schema(build(pa.field("c", pa.int8(), metadata={b"x": b"\xff"})))


# Delta's JSON


def test_delta_json_by_hand_and_back() -> None:
    text = (
        '{"type":"struct","fields":['
        '{"name":"id","type":"long","nullable":false,"metadata":{"comment":"é","delta.columnMapping.id":1,"o":{"a":[1.5]}}},'
        '{"name":"d","type":"decimal(10,2)","nullable":true,"metadata":{"json:x":"y"}},'
        '{"name":"l","type":{"type":"array","elementType":"timestamp_ntz","containsNull":false},'
        '"nullable":true,"metadata":{}},'
        '{"name":"m","type":{"type":"map","keyType":"string","valueType":{"type":"struct","fields":['
        '{"name":"x","type":"timestamp","nullable":false,"metadata":{"comment":"in"}}]},"valueContainsNull":false},'
        '"nullable":true,"metadata":{}}]}'
    )
    found = schemas.from_delta_json(text)
    assert found.names == ["id", "d", "l", "m"]
    assert found.field("l").type == list_of(NTZ, nullable=False)
    assert found.field("m").type == map_of(pa.string(), pa.struct([pa.field("x", UTC, nullable=False)]), nullable=False)
    assert (found.field("id").metadata or {})[b"comment"].decode() == "é"
    assert schemas.to_delta_json(found) == text
    assert schemas.to_arrow_schema(found).equals(found, check_metadata=True)


leaf_types = st.sampled_from(
    [
        pa.bool_(),
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.binary(),
        pa.date32(),
        UTC,
        NTZ,
        pa.decimal128(38, 0),
        pa.decimal128(7, 7),
    ]
)
texts = st.text(min_size=1, max_size=5)


@st.composite
def fields(draw: st.DrawFn, types: Any) -> Any:
    metadata = draw(st.none() | st.dictionaries(st.sampled_from(["comment", "x"]), st.text(max_size=8), min_size=1))
    name = draw(texts.filter(lambda text: not text.lower().startswith("_lm_")))
    return pa.field(name, draw(types), nullable=draw(st.booleans()), metadata=metadata)


def _nested(types: Any) -> Any:
    structs = st.lists(fields(types), min_size=1, max_size=3, unique_by=lambda field: field.name.lower())
    return st.one_of(
        st.builds(lambda kind, nullable: list_of(kind, nullable=nullable), types, st.booleans()),
        st.builds(lambda key, kind, nullable: map_of(key, kind, nullable=nullable), types, types, st.booleans()),
        structs.map(pa.struct),
    )


types = st.recursive(leaf_types, _nested, max_leaves=5)
random_schemas = st.lists(fields(types), min_size=1, max_size=4, unique_by=lambda field: field.name.lower()).map(
    pa.schema
)


@settings(max_examples=50, deadline=None)
@given(random_schemas)
def test_json_round_trip(schema: pa.Schema) -> None:
    text = schemas.to_delta_json(schema)
    assert schemas.from_delta_json(text).equals(schema, check_metadata=True)
    assert schemas.to_arrow_schema(schema).equals(schema, check_metadata=True)
    assert schemas.needs_timestamp_ntz(schema) == ('"timestamp_ntz"' in text and _mentions_ntz(json.loads(text)))


def _mentions_ntz(node: Any) -> bool:
    if isinstance(node, dict):
        return any(_mentions_ntz(value) for key, value in node.items() if key not in ("name", "metadata"))
    return any(_mentions_ntz(item) for item in node) if isinstance(node, list) else node == "timestamp_ntz"


def _as_ddl_says(kind: Any) -> Any:
    """What DDL can say of a type: elements and values are nullable, and comments the only metadata."""
    if pa.types.is_struct(kind):
        return pa.struct([_field_as_ddl_says(kind.field(i)) for i in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return map_of(_as_ddl_says(kind.key_type), _as_ddl_says(kind.item_type))
    return list_of(_as_ddl_says(kind.value_type)) if pa.types.is_list(kind) else kind


def _field_as_ddl_says(field: Any) -> Any:
    comment = (field.metadata or {}).get(b"comment")
    metadata = None if comment is None else {"comment": comment}
    return pa.field(field.name, _as_ddl_says(field.type), nullable=field.nullable, metadata=metadata)


@settings(max_examples=50, deadline=None)
@given(random_schemas)
def test_ddl_round_trip(schema: pa.Schema) -> None:
    expected = build(*(_field_as_ddl_says(field) for field in schema))
    assert schemas.to_arrow_schema(schemas.to_ddl(schema)).equals(expected, check_metadata=True)


@pytest.mark.parametrize(
    ("node", "named"),
    [
        ("variant", "'variant'"),
        ("interval day to second", "interval"),
        ("decimal(39,0)", "decimal"),
        ("decimal(5)", "decimal"),
        ({"type": "array", "elementType": "void", "containsNull": True}, "c.element"),
        ({"type": "udt", "sqlType": "long"}, "udt"),
        ({"type": "struct", "fields": [{"name": "x"}]}, "c: not a field"),
    ],
)
def test_delta_types_that_are_not_understood(node: object, named: str) -> None:
    column = {"name": "c", "type": node, "nullable": False, "metadata": {}}
    with pytest.raises(SchemaError) as caught:
        schemas.from_delta_json(json.dumps({"type": "struct", "fields": [column]}))
    assert named in str(caught.value)


def test_damaged_delta_json() -> None:
    for text in ("{", '"long"', "[1]", '{"type":"struct"}'):
        with pytest.raises(SchemaError):
            schemas.from_delta_json(text)
    collated = {"name": "c", "type": "string", "nullable": True, "metadata": {"__COLLATIONS": {"c": "UNICODE"}}}
    with pytest.raises(SchemaError, match="collated"):
        schemas.from_delta_json(json.dumps({"type": "struct", "fields": [collated]}))


# Casts


STRUCT = pa.struct([pa.field("x", pa.int64()), pa.field("y", list_of(pa.string()), nullable=False)])
NOON = dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("given_", "to", "expected"),
    [
        (array([-128, None], pa.int8()), pa.int64(), [-128, None]),
        (array([2**16 - 1], pa.uint16()), pa.int32(), [65535]),
        (array([2**32 - 1], pa.uint32()), pa.float64(), [4294967295.0]),
        (array([2**64 - 1], pa.uint64()), pa.decimal128(22, 2), [Decimal("18446744073709551615.00")]),
        (array([-(2**31)], pa.int32()), pa.float64(), [-2147483648.0]),
        (array([1.5, None], pa.float32()), pa.float64(), [1.5, None]),
        (array([-(2**63)], pa.int64()), pa.decimal128(19, 0), [Decimal(-(2**63))]),
        (array([Decimal("-1.5")], pa.decimal128(3, 1)), pa.decimal128(10, 4), [Decimal("-1.5000")]),
        (array([Decimal("1.5")], pa.decimal256(3, 1)), pa.decimal128(3, 1), [Decimal("1.5")]),
        (pa.nulls(2), STRUCT, [None, None]),
        (array(["a", None], pa.large_string()), pa.string(), ["a", None]),
        (array(["a", None], pa.string_view()), pa.string(), ["a", None]),
        (
            pa.DictionaryArray.from_arrays(array([0, 0, None], pa.int8()), array(["b"], pa.large_string())),
            pa.string(),
            ["b", "b", None],
        ),
        (array([b"ab"], pa.binary(2)), pa.binary(), [b"ab"]),
        (array([dt.date(1969, 1, 1)], pa.date64()), pa.date32(), [dt.date(1969, 1, 1)]),
        (array([NOON], pa.timestamp("s", "Asia/Tokyo")), UTC, [NOON]),
        (array([NOON], pa.timestamp("ns", "UTC")), UTC, [NOON]),
        (array([[1, None], None, []], pa.large_list(pa.int8())), list_of(pa.int64()), [[1, None], None, []]),
        (array([[1, 2], None], pa.list_(pa.int8(), 2)), list_of(pa.int64()), [[1, 2], None]),
        (array([[1], None, [2, 3]], pa.list_view(pa.int32())), list_of(pa.int64()), [[1], None, [2, 3]]),
        (array([[1], [2]], pa.list_(pa.int8())), list_of(pa.int8(), nullable=False), [[1], [2]]),
        (
            array([{"Y": ["a"], "X": 1}, None], pa.struct([("Y", pa.large_list(pa.string())), ("X", pa.int8())])),
            STRUCT,
            [{"x": 1, "y": ["a"]}, None],
        ),
        (  # nullable fields that the frame lacks are null
            array([[{"Y": 1}, None], None, []], pa.list_(pa.struct([("Y", pa.int8())]))),
            list_of(pa.struct([("x", STRUCT), ("y", pa.int64()), ("z", list_of(pa.int8()))])),
            [[{"x": None, "y": 1, "z": None}, None], None, []],
        ),
        (
            array([[("a", 1)], None, []], pa.map_(pa.large_string(), pa.int8())),
            map_of(pa.string(), pa.int32()),
            [[("a", 1)], None, []],
        ),
    ],
)
def test_lossless_casts(given_: Any, to: Any, expected: list[Any]) -> None:
    assert schemas.castable(given_.type, to)
    target = build(("c", to))
    whole = schemas.safe_cast(pa.record_batch({"C": given_, "extra": given_}), target)
    whole.validate(full=True)
    assert whole.schema == target
    assert whole.column(0).to_pylist() == expected
    # A bucket starts inside its buffers.
    part = schemas.safe_cast(pa.record_batch({"c": given_}).slice(1), target)
    part.validate(full=True)
    assert part.column(0).to_pylist() == expected[1:]


def test_run_end_encoded_columns() -> None:
    encoded = pc.run_end_encode(pa.array([1, 1, 2], pa.int8()))
    assert schemas.safe_cast(pa.record_batch({"c": encoded}), build(("c", pa.int64()))).column(0).to_pylist() == [
        1,
        1,
        2,
    ]
    assert schemas.to_arrow_schema(build(("c", encoded.type))).field("c").type == pa.int8()


@pytest.mark.parametrize(
    ("from_type", "to"),
    [
        (pa.float64(), pa.decimal128(38, 10)),
        (pa.float64(), pa.int64()),
        (pa.decimal128(10, 0), pa.int64()),
        (pa.int8(), pa.bool_()),
        (pa.bool_(), pa.int8()),
        (pa.int64(), pa.string()),
        (pa.string(), pa.binary()),
        (pa.binary(), pa.string()),
        (pa.string(), pa.date32()),
        (pa.date32(), NTZ),
        (NTZ, pa.date32()),
        (NTZ, UTC),
        (UTC, NTZ),
        (pa.int64(), UTC),
        (pa.time64("us"), pa.int64()),
        (pa.int64(), list_of(pa.int64())),
        (pa.struct([("x", pa.int64())]), STRUCT),
        (pa.struct([("x", pa.int64()), ("z", pa.list_(pa.string()))]), STRUCT),
        (pa.struct([("x", pa.int64()), ("X", pa.int64())]), STRUCT),
        (pa.list_(pa.float64()), list_of(pa.int32())),
        (pa.dictionary(pa.int8(), pa.float64()), pa.int32()),
        (pa.map_(pa.int8(), pa.int64()), map_of(pa.string(), pa.int64())),
    ],
)
def test_lossy_or_foreign_types_are_refused(from_type: Any, to: Any) -> None:
    assert not schemas.castable(from_type, to)


def test_one_error_lists_every_column_at_fault() -> None:
    batch = pa.record_batch(
        {
            "good": pa.array([1]),
            "number": pa.array([1.5]),
            "naive": pa.array([0], NTZ),
            "aware": pa.array([0], UTC),
            "fine": pa.array([1500], pa.timestamp("ns")),
            "twice": pa.array([1]),
            "TWICE": pa.array([1]),
            "holes": pa.array([[None]], pa.list_(pa.int64())),
            "inner": pa.array([{"x": 1, "y": None}], pa.struct([("x", pa.int64()), ("y", pa.list_(pa.string()))])),
        }
    )
    target = build(
        ("good", pa.int64()), ("number", pa.int64()), ("naive", UTC), ("aware", NTZ), ("fine", NTZ), ("gone", NTZ),
        ("twice", pa.int64()), ("holes", list_of(pa.int64(), nullable=False)), ("inner", STRUCT),
    )  # fmt: skip
    with pytest.raises(FrameError) as caught:
        schemas.safe_cast(batch, target)
    problems: Any = caught.value.facts["problems"]
    expected = {
        "number": "DOUBLE, the table has BIGINT",
        "naive": "assume_timezone",
        "aware": "local_timestamp",
        "fine": "would lose data",
        "gone": "missing",
        "twice": "more than once",
        "holes": "not nullable",
        "inner": "not nullable",
    }
    assert [problem.split("'")[1] for problem in problems] == list(expected)
    for problem, part in zip(problems, expected.values(), strict=True):
        assert part in problem


def test_nulls_at_the_top_level_and_under_a_null_struct_pass() -> None:
    field = pa.field("c", STRUCT, nullable=False)
    narrow = pa.struct([("x", pa.int8()), ("y", pa.list_(pa.string()))])
    cast = schemas.safe_cast(pa.record_batch({"c": pa.array([None, {"x": 1, "y": []}], narrow)}), build(field))
    assert cast.column(0).to_pylist() == [None, {"x": 1, "y": []}]
    assert schemas.safe_cast(pa.record_batch({"c": pa.array([1, 2])}), build()).num_columns == 0
