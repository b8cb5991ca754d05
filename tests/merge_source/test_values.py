"""What expressions give for rows, and when values are equal."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lakemerge.merge_source import entity_states
from lakemerge.merge_source.content_hash import hash_rows, hash_values
from lakemerge.merge_source.expressions import ExpressionError, parse_expression, shown
from lakemerge.merge_source.ids import composite_ids, ids_of, keys_of
from lakemerge.merge_source.rule_values import columns_needed, held_values
from lakemerge.merge_source.rules import parse_rules
from lakemerge.merge_source.types import common_type
from lakemerge.merge_source.value_texts import case_changed, match_texts, plain_texts

NOON = dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC)


def decimals(*texts: str) -> pa.Array:
    scale = max(len(text.partition(".")[2]) for text in texts)
    return pa.array([Decimal(text) for text in texts], pa.decimal128(20, scale))


def rows() -> pa.Table:
    return pa.table(
        {
            "x": pa.array([1, 2, None]),
            "Name": ["Ann", " Bo ", None],
            "last": ["Lee", None, None],
            "tags": pa.array([["p", "Q"], [], ["q", None]]),
            "d": [1.5, float("nan"), 2.0],
            "homes": pa.array([[{"zip": "1"}, {"zip": "2"}, None], None, [{"zip": None}]]),
            "byname": pa.array([[("k", 1)], [("z", 2)], None], pa.map_(pa.string(), pa.int64())),
            "$ids": pa.array([["i", "j"], None, []]),
            "blob": pa.array([b"\x00", None, None]),
        }
    )


def held(expression: str) -> list[list[str]]:
    """The values of each row."""
    found: list[str] = []
    rules = parse_rules([], [[expression, "b.other"]], ["a", "b"], pairwise=False, problems=found)
    assert not found
    given = held_values(rules, 0, rows(), pa.array(["1", "2", "3"]))
    values = given.values.to_pylist()
    return [[value for at, value in zip(given.rows, values, strict=True) if at == row] for row in range(3)]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a.x", [["n1"], ["n2"], []]),
        ("a.d", [["n1.5"], [], ["n2"]]),
        ("a.tags", [["sQ", "sp"], [], ["sq"]]),
        ("a.homes.zip", [["s1", "s2"], [], []]),
        ("a.HOMES.ZIP", [["s1", "s2"], [], []]),
        ("a.byname.k", [["n1"], [], []]),
        ("a.nowhere", [[], [], []]),
        ("a.x.y", [[], [], []]),
        ("a._id", [["s1"], ["s2"], ["s3"]]),
        ("a.$ids", [["si", "sj"], ["s2"], []]),
        ("a.blob", [["x00"], [], []]),
        ("lower(a.name)", [["sann"], ["s bo "], []]),
        ("upper(a.tags)", [["sP", "sQ"], [], ["sQ"]]),
        ("strip(a.Name)", [["sAnn"], ["sBo"], []]),
        ("lower(a.x)", [[], [], []]),
        ("string(a.d)", [["s1.5"], [], ["s2"]]),
        ("list(a.x, a.tags)", [["n1", "sQ", "sp"], ["n2"], ["sq"]]),
        ("coalesce(a.last, a.x)", [["sLee"], ["n2"], []]),
        ("coalesce(a.tags)", [["sp"], [], ["sq"]]),
        ("coalesce(list(a.last, a.tags))", [["sLee"], [], ["sq"]]),
        ("concat(a.Name, ' ', a.last)", [["sAnn Lee"], ["s Bo  "], []]),
        ("concat(a.tags, a.x)", [["spQ"], [], ["sq"]]),
        ("tuples(a.tags, a.x)", [['u["sQ","n1"]', 'u["sp","n1"]'], [], []]),
        ("lower(concat(a.Name, upper(a.last)))", [["sannlee"], ["s bo "], []]),
        ("nullif(a.x, 1)", [[], ["n2"], []]),
        ("nullif(a.x, 1.0)", [[], ["n2"], []]),
        ("nullif(a.x, '1')", [["n1"], ["n2"], []]),
        ("nullif(a.tags, 'p')", [["sQ"], [], ["sq"]]),
        ("nullif(a.tags, 'p', 'q')", [["sQ"], [], []]),
        ("nullif(a.x, a.d)", [["n1"], ["n2"], []]),
        ("nullif(a.x, null)", [["n1"], ["n2"], []]),
        ("case when a.x = 1 then a.tags end", [["sQ", "sp"], [], []]),
        ("case when a.x <> 1 then a.x end", [[], ["n2"], []]),
        ("case when not a.x = 1 then 'y' else 'n' end", [["sn"], ["sy"], ["sn"]]),
        ("case when a.x is null then 'none' when a.x >= 2 then 'many' else a.x end", [["n1"], ["smany"], ["snone"]]),
        ("case a.x when 1 then 'one' when 2 then 'two' end", [["sone"], ["stwo"], []]),
        ("case when a.x in (2, 3) or a.d > 1.9 then 'y' end", [[], ["sy"], ["sy"]]),
        ("case when a.x not in (2, 3) then 'y' end", [["sy"], [], []]),
        ("case when (a.x = 1 or a.x = 2) and a.last is not null then 'y' end", [["sy"], [], []]),
        ("case when a.tags = 'p' then 'y' end", [["sy"], [], []]),
        ("case when a.tags <> 'p' then 'y' end", [[], [], ["sy"]]),
        ("case when a.tags < 'a' then 'y' end", [["sy"], [], []]),
        ("case when a.x < 'z' then 'y' else 'n' end", [["sn"], ["sn"], ["sn"]]),
        ("CASE WHEN a.x = 1 THEN NULL ELSE a._id END", [[], ["s2"], ["s3"]]),
    ],
)
def test_values_of_expressions(expression: str, expected: list[list[str]]) -> None:
    assert held(expression) == expected


@pytest.mark.parametrize(
    ("listed", "text"),
    [
        (["nullif", "a.x", 1], "nullif(a.x, 1)"),
        (["if", ["eq", "a.x", 1], "a.tags"], "case when a.x = 1 then a.tags end"),
        (["if", ["not", ["in", "a.x", 1, 2]], None, "a.x"], "case when not (a.x in (1, 2)) then null else a.x end"),
        (
            ["case", ["or", ["is-null", "a.x"], ["lt", "a.x", 0]], "a.y", ["neq", "a.y", "it's"], "a.x"],
            "case when (a.x is null or a.x < 0) then a.y when a.y <> 'it''s' then a.x end",
        ),
    ],
)
def test_both_forms_of_conditions(listed: list[object], text: str) -> None:
    one, other = parse_expression(listed, ["a"]), parse_expression(text, ["a"])
    assert one == other
    assert shown(one, ["a"]) == text


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("nullif(a.x)", "takes 2 or more arguments"),
        ("case a.x end", "lacks a 'when'"),
        ("case when a.x then a.y end", "a comparison is expected"),
        ("case when a.x = 1 then a.y", "'end' is expected and not 'its end'"),
        ("case when a.x = 1 a.y end", "'then' is expected and not 'a.y'"),
        (["if", "a.x", "a.y"], "is not a condition"),
        (["if", ["eq", "a.x"], "a.y"], "takes two arguments"),
        (["eq", "a.x", 1], "there is no function 'eq'"),
    ],
)
def test_conditions_that_are_none(expression: object, why: str) -> None:
    with pytest.raises(ExpressionError, match=why):
        parse_expression(expression, ["a"])


@pytest.mark.parametrize("scale", [1, 10, 18, 37])
def test_decimals_as_text_are_the_numbers_that_they_are(scale: int) -> None:
    """Python says what the text means; different numbers have different texts."""
    units = (0, 1, -1, 15, 150, 10**scale, -3 * 10**scale, 123456789, 10**37 - 1, 7 - 10**37)
    numbers = [Decimal(f"{count}E-{scale}") for count in units]
    texts = plain_texts(pa.array(numbers, pa.decimal128(38, scale))).to_pylist()
    assert [Decimal(text) for text in texts] == numbers
    assert len(set(texts)) == len(set(numbers))
    assert [text for text, number in zip(texts, numbers, strict=True) if number == int(number) and "." in text] == []


def test_columns_that_are_needed() -> None:
    rules = parse_rules([], [["concat(a.name, a.homes.zip)", "b.x"]], ["a", "b"], pairwise=False, problems=[])
    assert columns_needed(rules, 0, rows().column_names) == ["Name", "homes"]
    assert columns_needed(rules, 1, ["y"]) == []


@pytest.mark.parametrize(
    "equal",
    [
        [pa.array([1], pa.int8()), pa.array([1]), pa.array([1.0]), pa.array([1.0], pa.float32()), decimals("1.00")],
        [pa.array([0.1]), decimals("0.10")],
        [pa.array([-0.0]), pa.array([0]), decimals("0.0")],
        [pa.array([1e20]), pa.array([Decimal(10**20)], pa.decimal128(38, 0))],
        [pa.array([2.5], pa.float32()), decimals("2.500")],
    ],
    ids=lambda equal: " ".join(str(values.type) for values in equal),
)
def test_numbers_are_equal_by_value(equal: list[pa.Array]) -> None:
    assert len({match_texts(values)[0].as_py() for values in equal}) == 1
    hashes = {int(hash_values(values)[0]) for values in equal if not pa.types.is_decimal(values.type)}
    assert len(hashes) == 1


def test_values_of_other_kinds_are_never_equal() -> None:
    kinds = [
        pa.array([1]),
        pa.array(["1"]),
        pa.array([True]),
        pa.array([b"1"]),
        pa.array([dt.date(1970, 1, 2)]),
        pa.array([NOON], pa.timestamp("us", "UTC")),
        pa.array([NOON.replace(tzinfo=None)], pa.timestamp("us")),
        pa.array([{"a": 1}]),
        pa.array([{"a": "1"}]),
        pa.array([[1]]),
        pa.array(["true"]),
        pa.array(["2026-07-01T12:00:00Z"]),
    ]
    assert len({match_texts(values)[0].as_py() for values in kinds}) == len(kinds)


def test_what_matches_nothing() -> None:
    assert match_texts(pa.array([None, float("nan")], pa.float64())).to_pylist() == [None, None]
    assert match_texts(pa.array([""])).to_pylist() == ["s"]
    assert match_texts(pa.array([float("inf")])).to_pylist() == ["ninf"]


def test_structs_are_equal_without_their_nulls() -> None:
    one = pa.array([{"a": 1, "b": None}], pa.struct([("a", pa.int64()), ("b", pa.string())]))
    other = pa.array([{"a": 1.0}])
    assert match_texts(one).to_pylist() == match_texts(other).to_pylist() == ['j{"a":"n1"}']


@pytest.mark.parametrize(
    ("column", "ids"),
    [
        (pa.array([7, -1]), ["7", "-1"]),
        (pa.array([7, -1], pa.int8()), ["7", "-1"]),
        (pa.array(['a"b', "é|\n"]), ['a"b', "é|\n"]),
        (pa.array([b"\x00\xff", b""]), ["00ff", ""]),
        (pa.array([True, False]), ["true", "false"]),
        (pa.array([dt.date(2026, 7, 1), dt.date(1, 1, 1)]), ["2026-07-01", "0001-01-01"]),
        (
            pa.array([NOON, NOON.replace(microsecond=40)], pa.timestamp("us", "UTC")),
            ["2026-07-01T12:00:00Z", "2026-07-01T12:00:00.000040Z"],
        ),
        (pa.array(["1960-01-01", None]).cast(pa.timestamp("us")).drop_null(), ["1960-01-01T00:00:00"]),
        (pa.array([Decimal("1.50"), Decimal("-20.00")]), ["1.5", "-20"]),
    ],
    ids=lambda given: str(getattr(given, "type", "")),
)
def test_ids_are_the_key_as_text_and_back(column: pa.Array, ids: list[str]) -> None:
    table = pa.table({"k": column})
    assert ids_of(table, ["k"]).to_pylist() == ids
    assert keys_of(pa.array(ids), ["k"], table.schema).equals(table)


def test_ids_of_several_columns_are_json() -> None:
    table = pa.table({"s": ['a"', "\u0001é"], "n": [1, -2], "f": [True, False], "b": [b"\x01", b""]})
    ids = ids_of(table, ["s", "n", "f", "b"])
    assert ids.to_pylist() == ['["a\\"",1,true,"01"]', '["\\u0001é",-2,false,""]']
    assert keys_of(ids, ["s", "n", "f", "b"], table.schema).equals(table)


def test_composite_ids() -> None:
    ids = composite_ids(np.array([0, 2, 3]), np.array([0, 12, 1]), pa.array(["a", "b|", "c"]))
    assert ids.to_pylist() == ["0|a|12|b|", "1|c"]


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        (pa.array(['a"', ""]), ['a"', ""]),
        (pa.array([-7, 10**18]), ["-7", "1000000000000000000"]),
        (pa.array([True, False]), ["true", "false"]),
        (pa.array([2.0, -0.0, 0.5, 1e21]), ["2", "0", "0.5", "1000000000000000000000"]),
        (pa.array([0.000001, 1e-7, 1.5e-10]), ["0.000001", "1e-7", "1.5e-10"]),
        (pa.array([9999999999.5, 10000000000.5, 1e38]), ["9999999999.5", "1.00000000005e+10", "1e+38"]),
        (pa.array([float("inf"), float("-inf"), float("nan")]), ["inf", "-inf", "NaN"]),
        (pa.array([0.1, 2.5], pa.float32()), ["0.10000000149011612", "2.5"]),
        (decimals("1.50", "2.00", "0.0000001"), ["1.5", "2", "1e-7"]),
        (decimals("12345678901234567.80"), ["12345678901234567.8"]),
        (pa.array([b"\x00\xff"]), ["00ff"]),
        (pa.array([dt.date(2026, 7, 1)]), ["2026-07-01"]),
        (pa.array([NOON], pa.timestamp("us", "UTC")), ["2026-07-01T12:00:00Z"]),
        (pa.array([NOON.replace(microsecond=500_000)], pa.timestamp("us", "UTC")), ["2026-07-01T12:00:00.500000Z"]),
        (pa.array([NOON.replace(tzinfo=None)], pa.timestamp("us")), ["2026-07-01T12:00:00"]),
        (pa.array([{"B": "x", "a": 1.5, "c": None}, {"c": 1}]), ['{"a":1.5,"B":"x"}', '{"c":1}']),
        (pa.array([[1, None, 2]]), ["[1,null,2]"]),
        (pa.array([[float("nan"), float("inf")]]), ["[NaN,inf]"]),
        (pa.array([[dt.date(2026, 7, 1)]]), ['["2026-07-01"]']),
        (pa.array([[("m", 1), ("b", None)]], pa.map_(pa.string(), pa.int8())), ['[{"key":"b"},{"key":"m","value":1}]']),
        (pa.array([['"', "\\", "\n\r\t\b\f", "\x1f\x7f/é"]]), ['["\\"","\\\\","\\n\\r\\t\\b\\f","\\u001f\x7f/é"]']),
    ],
    ids=lambda given: str(getattr(given, "type", "")),
)  # fmt: skip
def test_the_texts_of_the_norm(values: pa.Array, texts: list[str]) -> None:
    assert plain_texts(values).to_pylist() == texts


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (decimals("1.50"), "1.5"),
        (pa.array([1.5]), "1.5"),
        (pa.array([2.0]), "2"),
        (pa.array([NOON.date()]), "2026-07-01"),
    ],
    ids=lambda given: str(getattr(given, "type", "")),
)
def test_in_ids_of_several_columns_only_integers_and_booleans_are_bare(values: pa.Array, text: str) -> None:
    rows = pa.table({"s": ["NO"], "n": [7], "v": values})
    assert ids_of(rows, ["s", "n", "v"]).to_pylist() == [f'["NO",7,"{text}"]']


def test_which_numbers_match() -> None:
    """A decimal is the double as which it is written; FLOAT 0.1 is another number than DOUBLE 0.1."""
    assert match_texts(decimals("0.10")).equals(match_texts(pa.array([0.1])))
    assert not match_texts(pa.array([0.1], pa.float32())).equals(match_texts(pa.array([0.1])))
    nested = pa.array([{"C": "x", "b": 1, "n": float("nan")}])
    assert match_texts(nested).to_pylist() == ['j{"b":"n1","c":"sx"}']


def test_case_and_white_space_are_those_of_unicode() -> None:
    assert case_changed(pa.array(["ß", "ΑΣ", "İ"]), upper=True).to_pylist() == ["SS", "ΑΣ", "İ"]
    assert case_changed(pa.array(["ß", "ΑΣ", "İ"]), upper=False).to_pylist() == ["ß", "ας", "i̇"]
    texts = pa.table({"x": ["\u00a0a\u3000", "\u001cb\u001f", "\u200bc", "\ufeffd"]})
    rules = parse_rules([], [["strip(a.x)", "b.x"]], ["a", "b"], pairwise=False, problems=[])
    stripped = held_values(rules, 0, texts, pa.array(["1", "2", "3", "4"])).values.to_pylist()
    assert stripped == ["sa", "sb", "s\u200bc", "s\ufeffd"]


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        (pa.int8(), pa.int64(), pa.int64()),
        (pa.int32(), pa.float32(), pa.float64()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.int64(), pa.float64(), None),
        (pa.int8(), pa.decimal128(5, 2), pa.decimal128(12, 2)),
        (pa.int64(), pa.decimal128(5, 2), pa.decimal128(22, 2)),
        (pa.decimal128(5, 4), pa.decimal128(5, 2), pa.decimal128(7, 4)),
        (pa.decimal128(38, 0), pa.decimal128(5, 2), None),
        (pa.date32(), pa.timestamp("us", "UTC"), None),
        (pa.struct([("a", pa.int8())]), pa.struct([("A", pa.int32()), ("b", pa.string())]),
         pa.struct([("a", pa.int32()), ("b", pa.string())])),
        (pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int32())),
        (pa.map_(pa.int8(), pa.string()), pa.map_(pa.int32(), pa.string()), None),
    ],
    ids=str,
)  # fmt: skip
def test_common_types(one: pa.DataType, other: pa.DataType, common: pa.DataType | None) -> None:
    assert common_type(one, other) == common


def test_plain_texts() -> None:
    assert plain_texts(pa.array([1.0, 2.5, float("nan"), None])).to_pylist() == ["1", "2.5", "NaN", None]
    nested = pa.array([{"a": [1, None], "b": "x\n", "c": {"d": True}}])
    assert plain_texts(nested).to_pylist() == ['{"a":[1,null],"b":"x\\n","c":{"d":true}}']


def test_hashes_tell_what_changed_and_not_how_it_is_stored() -> None:
    def one(**columns: Any) -> int:
        return int(hash_rows(pa.table({name: pa.array([value]) for name, value in columns.items()}))[0])

    assert one(x=1, y="a") == one(y="a", x=1) == one(x=1.0, y="a", z=pa.scalar(None, pa.string()))
    different = [
        one(x=1),
        one(y=1),
        one(x="1"),
        one(x=[1]),
        one(x=[1, 2]),
        one(x=[2, 1]),
        one(x=[1, None]),
        one(x=[None, 1]),
        one(x=[[1], [2]]),
        one(x=[[1, 2]]),
        one(x={"a": 1}),
        one(x={"b": 1}),
        one(x=True),
        one(x=1.5),
        one(x=0),
    ]
    assert len(set(different)) == len(different)


@pytest.mark.parametrize("collide", [False, True])
def test_places_of_texts(collide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where all hashes are the same."""
    if collide:
        monkeypatch.setattr(entity_states, "hash_columns", lambda columns: np.zeros(len(columns[0]), dtype=np.int64))
    places = entity_states.Places(pa.array(["b", "", "a"]))
    assert places.of(pa.array(["a", "c", "", "b", "a"])).tolist() == [2, -1, 1, 0, 2]
    assert places.of(pa.array([], pa.string())).tolist() == []
    assert entity_states.Places(pa.array([], pa.string())).of(pa.array(["a"])).tolist() == [-1]
    assert entity_states.Places(pa.array(["b"])).of(pa.array(["a", "b"])).tolist() == [-1, 0]
