"""Actions against hand-written JSON lines in the form the Delta protocol gives, and protocol checks."""

from __future__ import annotations

import json

import pytest

from lakemerge.delta import (
    WRITER_FEATURES,
    Action,
    AddFile,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    Txn,
    check_readable,
    check_writable,
    decode,
    encode,
    writer_features,
)
from lakemerge.delta.protocol import duration_ms
from lakemerge.errors import TableDamagedError, UnsupportedFeatureError

ADD = {
    "path": "c=N%20O/a%2Bb.parquet",
    "partitionValues": {"c": "N O", "d": None},
    "size": 7,
    "modificationTime": 11,
    "dataChange": True,
    "stats": '{"numRecords":3}',
    "tags": {"lakemerge.slice": "1/16"},
    "baseRowId": 5,
}


def metadata(schema: str = '{"type":"struct","fields":[]}', **configuration: str) -> Metadata:
    return Metadata("id", None, None, schema, (), {k.replace("__", "."): v for k, v in configuration.items()}, None)


def line(kind: str, fields: object) -> bytes:
    return json.dumps({kind: fields}).encode() + b"\n"


KNOWN: list[tuple[str, dict[str, object], Action]] = [
    (
        "add",
        ADD,
        AddFile(
            "c=N O/a+b.parquet",
            {"c": "N O", "d": None},
            7,
            11,
            True,
            '{"numRecords":3}',
            {"lakemerge.slice": "1/16"},
            {"baseRowId": 5},
        ),
    ),
    (
        "remove",
        {
            "path": "x.parquet",
            "deletionTimestamp": 9,
            "dataChange": False,
            "extendedFileMetadata": True,
            "partitionValues": {},
            "size": 4,
            "stats": "{}",
        },
        RemoveFile("x.parquet", 9, False, {}, 4, extra={"stats": "{}"}),
    ),
    (
        "metaData",
        {
            "id": "i",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": "{}",
            "partitionColumns": ["c"],
            "configuration": {"k": "v"},
            "createdTime": 1,
            "future": [1],
        },
        Metadata("i", None, None, "{}", ("c",), {"k": "v"}, 1, {"future": [1]}),
    ),
    (
        "protocol",
        {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["domainMetadata", "lakemerge"]},
        Protocol(1, 7, frozenset(), frozenset({"lakemerge", "domainMetadata"})),
    ),
    ("protocol", {"minReaderVersion": 1, "minWriterVersion": 2}, Protocol(1, 2)),
    ("txn", {"appId": "a", "version": 0, "lastUpdated": 3}, Txn("a", 0, 3)),
    ("domainMetadata", {"domain": "d", "configuration": "{}", "removed": True}, DomainMetadata("d", "{}", True)),
    ("commitInfo", {"operation": "WRITE", "future": None}, CommitInfo({"operation": "WRITE"})),
]


@pytest.mark.parametrize(("kind", "fields", "action"), KNOWN)
def test_known_lines_decode_and_encode_to_the_same_json(kind: str, fields: dict[str, object], action: Action) -> None:
    assert decode(line(kind, fields), "f") == (action,)
    present = {key: value for key, value in fields.items() if value is not None}
    assert json.loads(encode([action])) == {kind: present}


def test_unknown_actions_and_blank_lines_are_passed_over() -> None:
    data = line("cdc", {"path": "x"}) + b"\n  \n" + line("txn", {"appId": "a", "version": 1})
    assert decode(data, "f") == (Txn("a", 1),)


def test_a_spelling_of_another_writer_survives() -> None:
    (add,) = decode(line("add", {**ADD, "path": "c=a%20+b/d%3a1.parquet"}), "f")
    assert isinstance(add, AddFile)
    assert add.path == "c=a +b/d:1.parquet"
    assert json.loads(encode([add]))["add"]["path"] == "c=a%20+b/d%3a1.parquet"


@pytest.mark.parametrize("path", ["/abs.parquet", "s3://b/k", "file:/x"])
@pytest.mark.parametrize("kind", ["add", "remove"])
def test_absolute_paths_are_refused_by_name(kind: str, path: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match=f"{path!r} by an absolute path"):
        decode(line(kind, {**ADD, "path": path}), "0001.json")


@pytest.mark.parametrize("path", ["a/../b", "..", "", "a//b", "a/.", "%2e%2e/x", "a%5Cb", "%FF"])
@pytest.mark.parametrize("kind", ["add", "remove"])
def test_paths_outside_the_table_are_damage(kind: str, path: str) -> None:
    with pytest.raises(TableDamagedError, match=r"0001\.json, line 1"):
        decode(line(kind, {**ADD, "path": path}), "0001.json")


@pytest.mark.parametrize(
    "bad",
    [
        b'{"add":{"path":"x","par',
        b"[]",
        b'"text"',
        line("add", {"path": "x"}),
        line("add", {**ADD, "size": "7"}),
        line("add", {**ADD, "size": True}),
        line("add", {**ADD, "tags": {"a": 1}}),
        line("txn", 5),
        line("metaData", {"id": "i", "schemaString": "{}", "partitionColumns": [1]}),
    ],
)
def test_damage_names_file_and_line(bad: bytes) -> None:
    with pytest.raises(TableDamagedError) as caught:
        decode(line("txn", {"appId": "a", "version": 1}) + bad, "f.json")
    assert (caught.value.path, caught.value.line) == ("f.json", 2)


def test_an_empty_file_is_damage() -> None:
    with pytest.raises(TableDamagedError, match="empty"):
        decode(b"\n", "f.json")


def test_vectors_in_the_log_and_foreign_formats_are_refused_by_name() -> None:
    for kind in ("i", "p"):
        vector = {"storageType": kind, "pathOrInlineDv": "x", "sizeInBytes": 34, "cardinality": 2}
        with pytest.raises(UnsupportedFeatureError, match=f"deletionVectors of storage type '{kind}'"):
            decode(line("add", {**ADD, "deletionVector": vector}), "f")
    with pytest.raises(UnsupportedFeatureError, match="orc"):
        decode(line("metaData", {"id": "i", "schemaString": "{}", "format": {"provider": "orc"}}), "f")


@pytest.mark.parametrize(
    "feature",
    ["rowTracking", "typeWidening-preview", "variantType", "catalogManaged"],
)
def test_reader_features_are_refused_by_name(feature: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match=feature):
        check_readable(Protocol(3, 7, frozenset({feature, "timestampNtz"}), frozenset({feature})))


def test_readable_protocols() -> None:
    check_readable(Protocol(1, 2))
    check_readable(Protocol(2, 5), metadata())
    check_readable(Protocol(3, 7, frozenset({"timestampNtz"}), frozenset({"timestampNtz", "whatever"})))
    check_readable(Protocol(2, 5), metadata(delta__columnMapping__mode="name"))
    check_readable(Protocol(2, 5), metadata(delta__columnMapping__mode="id"))
    with pytest.raises(UnsupportedFeatureError, match="columnMapping of mode 'other'"):
        check_readable(Protocol(2, 5), metadata(delta__columnMapping__mode="other"))
    with pytest.raises(UnsupportedFeatureError, match="reader version 4"):
        check_readable(Protocol(4, 7))


def test_writer_features_implied_by_old_versions() -> None:
    assert writer_features(Protocol(1, 1)) == frozenset()
    assert writer_features(Protocol(1, 2)) == {"appendOnly", "invariants"}
    assert writer_features(Protocol(1, 4)) == {
        "appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("feature", "active"),
    [
        ("appendOnly", metadata(delta__appendOnly="true")),
        ("changeDataFeed", metadata(delta__enableChangeDataFeed="TRUE")),
        ("invariants", metadata('{"metadata":{"delta.invariants":"x"}}')),
        ("generatedColumns", metadata('{"metadata":{"delta.generationExpression":"x"}}')),
        ("identityColumns", metadata('{"metadata":{"delta.identity.start":1}}')),
    ],
)
def test_listed_features_hinder_only_where_active(feature: str, active: Metadata) -> None:
    protocol = Protocol(1, 7, frozenset(), WRITER_FEATURES | {feature})
    check_writable(protocol, WRITER_FEATURES, metadata=metadata())
    for given in (active, None):
        with pytest.raises(UnsupportedFeatureError, match=feature):
            check_writable(protocol, WRITER_FEATURES, metadata=given)
    check_writable(protocol, WRITER_FEATURES | {feature}, metadata=active)


@pytest.mark.parametrize("feature", ["rowTracking", "clustering", "icebergCompatV2", "unheardOf"])
def test_unknown_writer_features_are_refused_by_name(feature: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match=feature):
        check_writable(Protocol(1, 7, frozenset(), frozenset({feature})), WRITER_FEATURES, metadata=metadata())


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("interval 7 days", 604_800_000),
        ("INTERVAL 1 week 2 hours", 612_000_000),
        ("30 seconds", 30_000),
        ("interval 1 month", None),
        ("soon", None),
        ("", None),
    ],
)
def test_durations(text: str, expected_ms: int | None) -> None:
    assert duration_ms(metadata(k=text), "k", default=1) == expected_ms
    assert duration_ms(metadata(), "k", default=1) == 1
