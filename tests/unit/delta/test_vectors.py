"""Deletion vectors against the Delta protocol's example, hand-written bytes and the Roaring library.

The identity of files in the log is path and vector together."""

from __future__ import annotations

import itertools
import json
import random
import uuid
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pyroaring
import pytest

from lakemerge.delta import (
    Action,
    AddFile,
    Attempt,
    Committed,
    DeletionVector,
    DeltaLog,
    Metadata,
    Protocol,
    RemoveFile,
    Snapshot,
    decode,
    encode,
    encode_vector,
    read_vector,
    write_vectors,
)
from lakemerge.delta.checkpoint import encode_checkpoint
from lakemerge.delta.checkpoint_reader import read_checkpoint
from lakemerge.delta.listing import Checkpoint
from lakemerge.delta.snapshot import SnapshotBuilder
from lakemerge.delta.vectors import Bools, vector_file
from lakemerge.errors import InputError, TableDamagedError
from lakemerge.storage import open_store
from lakemerge.storage.local import LocalStore

PLACE = "ab^-aqEH.-t@S}K{vb[*k^"
"""The example of the protocol, with its file's name below."""
NAME = uuid.UUID("d2c639aa-8816-431a-aaf6-d3fe2512ff61")
DATA = Metadata("i", None, None, '{"type":"struct","fields":[]}', (), {}, None)


def bits(rows: list[int]) -> Bools:
    taken = np.zeros(max(rows) + 1, dtype=np.bool_)
    taken[rows] = True
    return taken


def vector(number: int) -> DeletionVector:
    return DeletionVector(PLACE, 1 + 42 * number, 34, number + 1)


def test_the_example_of_the_protocol() -> None:
    assert vector(0).path == f"ab/deletion_vector_{NAME}.bin"
    assert vector_file("ab", NAME) == (f"ab/deletion_vector_{NAME}.bin", PLACE)
    assert DeletionVector(PLACE[2:], 4, 40, 6).path == f"deletion_vector_{NAME}.bin"
    assert DeletionVector(PLACE, 4, 40, 6).id == f"u{PLACE}@4"


@pytest.mark.parametrize("place", ["", "short", "x" * 19 + "~", "../" + PLACE[2:], "a//" + PLACE[2:], "#" * 20])
def test_places_that_are_none(place: str) -> None:
    fields = {"storageType": "u", "pathOrInlineDv": place, "offset": 1, "sizeInBytes": 34, "cardinality": 1}
    with pytest.raises((InputError, ValueError)):
        DeletionVector.from_json(fields)
    add = {"path": "x", "partitionValues": {}, "size": 1, "modificationTime": 1, "deletionVector": fields}
    with pytest.raises(TableDamagedError, match="f, line 1"):
        decode(json.dumps({"add": add}).encode(), "f")


@pytest.mark.parametrize("fields", [{"offset": "1"}, {"sizeInBytes": None}, {"cardinality": -1}, {"storageType": "z"}])
def test_fields_that_are_wrong(fields: dict[str, object]) -> None:
    whole = {"storageType": "u", "pathOrInlineDv": PLACE, "offset": 1, "sizeInBytes": 34, "cardinality": 1}
    with pytest.raises(ValueError, match="deletion vector"):
        DeletionVector.from_json(whole | fields)


def row_sets() -> list[list[int]]:
    chosen = random.Random(7)
    dense = sorted(chosen.sample(range(70_000), 50_000))
    return [
        [0],
        [65_535, 65_536],
        list(range(4096)),
        list(range(4097)),
        list(range(200_000)),
        dense,
        sorted(chosen.sample(range(1_000_000), 5_000)),
        [5, 65_536 * 7 + 1, 2**24],
    ]


@pytest.mark.parametrize("number", range(len(row_sets())))
def test_bitmaps_are_those_of_the_roaring_library(tmp_path: Path, number: int) -> None:
    rows = row_sets()[number]
    encoded = encode_vector(bits(rows))
    assert encoded.cardinality == len(rows)
    assert encoded.data[:4] == (1681511377).to_bytes(4, "little")
    assert list(pyroaring.BitMap64.deserialize(encoded.data[4:])) == rows
    store = LocalStore(tmp_path)
    (written,) = write_vectors(store, "dv1", NAME, [encoded])
    assert np.flatnonzero(read_vector(store, written)).tolist() == rows
    # A library that stores runs writes other bytes.
    theirs = pyroaring.BitMap64(rows)
    theirs.run_optimize()
    data = encoded.data[:4] + theirs.serialize()
    body = len(data).to_bytes(4, "big") + data + zlib.crc32(data).to_bytes(4, "big")
    (tmp_path / written.path).write_bytes(b"\x01" + body)
    found = read_vector(store, replace(written, size_bytes=len(data)), rows=rows[-1] + 3)
    assert (len(found), np.flatnonzero(found).tolist()) == (rows[-1] + 3, rows)


def test_a_file_of_two_vectors_byte_by_byte(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    first, second = write_vectors(store, "dv7", NAME, [encode_vector(bits([1])), encode_vector(bits([0, 3]))])

    def data(rows: list[int]) -> bytes:
        lows = b"".join(row.to_bytes(2, "little") for row in rows)
        bitmap = (12346).to_bytes(4, "little") + (1).to_bytes(4, "little") + b"\0\0"
        bitmap += (len(rows) - 1).to_bytes(2, "little") + (16).to_bytes(4, "little") + lows
        return b"\xd1\xd3\x39\x64" + (1).to_bytes(8, "little") + bytes(4) + bitmap

    parts = [data([1]), data([0, 3])]
    framed = [len(part).to_bytes(4, "big") + part + zlib.crc32(part).to_bytes(4, "big") for part in parts]
    path = f"dv7/deletion_vector_{NAME}.bin"
    assert (tmp_path / path).read_bytes() == b"\x01" + b"".join(framed)
    assert first.to_json() == {
        "storageType": "u",
        "pathOrInlineDv": "dv7" + PLACE[2:],
        "offset": 1,
        "sizeInBytes": len(parts[0]),
        "cardinality": 1,
    }
    assert (second.offset, second.size_bytes, second.cardinality) == (1 + len(framed[0]), len(parts[1]), 2)


def test_an_empty_vector_is_never_written() -> None:
    with pytest.raises(InputError, match="no row"):
        encode_vector(np.zeros(5, dtype=np.bool_))


def test_damaged_vectors_are_named(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    (written,) = write_vectors(store, "dv1", NAME, [encode_vector(bits([1, 9]))])
    file = tmp_path / written.path
    whole = file.read_bytes()
    for place in range(1, len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(TableDamagedError, match="deletion vector"):
            read_vector(store, written)
    file.write_bytes(whole[:-1])
    with pytest.raises(TableDamagedError, match="no vector of its size"):
        read_vector(store, written)
    file.write_bytes(whole)
    with pytest.raises(TableDamagedError, match="takes 2 rows away, and the log says 3"):
        read_vector(store, replace(written, cardinality=3))
    with pytest.raises(TableDamagedError, match="row 9 away of a file of 9 rows"):
        read_vector(store, written, rows=9)
    file.unlink()
    with pytest.raises(TableDamagedError, match="missing") as caught:
        read_vector(store, written)
    assert caught.value.facts["path"] == written.path


def add(path: str, of: int | None) -> AddFile:
    return AddFile(path, {}, 1, 2, True, vector=None if of is None else vector(of))


def remove(path: str, of: int | None, at: int = 5) -> RemoveFile:
    return RemoveFile(path, at, True, {}, 1, vector=None if of is None else vector(of))


def test_the_order_of_actions_in_a_commit_means_nothing() -> None:
    """Two files, of which one gets a second vector and the other goes and a third comes."""
    begin = SnapshotBuilder()
    begin.apply([Protocol(3, 7), DATA, add("a", None), add("b", 0)])
    commit: list[Action] = [remove("a", None), add("a", 1), remove("b", 0), add("c", None)]
    for order in itertools.permutations(commit):
        replay = SnapshotBuilder(begin.finish(0, 1, None))
        replay.apply(order)
        assert replay.files == {"a": add("a", 1), "c": add("c", None)}
        assert replay.tombstones == {"b": remove("b", 0)}, "the data file of a is live"
        replay.apply([remove("a", 1, at=6)])
        assert replay.tombstones == {"b": remove("b", 0), "a": remove("a", 1, at=6)}


def test_the_order_of_rows_in_a_checkpoint_means_nothing() -> None:
    """What deltalake wrote after two generations of vectors: the removes of both earlier ones beside the add."""
    rows: list[Action] = [add("a", 1), remove("a", 0), remove("a", None)]
    for order in itertools.permutations(rows):
        replay = SnapshotBuilder()
        replay.apply([Protocol(3, 7), DATA, *order])
        assert (replay.files, replay.tombstones) == ({"a": add("a", 1)}, {})


def test_a_data_file_under_two_vectors_at_once_is_damage() -> None:
    replay = SnapshotBuilder()
    replay.apply([Protocol(3, 7), DATA, add("a", 0)])
    with pytest.raises(TableDamagedError, match="two deletion vectors"):
        replay.apply([add("a", 1)])


def state(files: list[AddFile], tombstones: list[RemoveFile]) -> Snapshot:
    return Snapshot(
        3,
        5,
        Protocol(3, 7),
        DATA,
        {f.path: f for f in files},
        {r.path: r for r in tombstones},
        {},
        {},
        None,
        digest="d",
    )


def test_a_checkpoint_keeps_vectors(tmp_path: Path) -> None:
    snapshot = state([add("a", 1), add("b", None)], [remove("c", 2, at=99), remove("d", None, at=99)])
    path = "_delta_log/00000000000000000003.checkpoint.parquet"
    (tmp_path / "_delta_log").mkdir()
    pq.write_table(encode_checkpoint(snapshot, now_ms=100), tmp_path / path)
    store = open_store(tmp_path)
    stat = store.stat(path)
    assert stat is not None
    found = read_checkpoint(store, Checkpoint(3, (stat,)))
    removed = {place: replace(file, partition_values=None) for place, file in snapshot.tombstones.items()}
    assert (found.files, found.tombstones) == (snapshot.files, removed)
    rows = pq.read_table(tmp_path / path).to_pylist()
    told = {row["add"]["path"]: row["add"]["deletionVector"] for row in rows if row["add"]}
    assert told == {"a": vector(1).to_json(), "b": None}
    assert {row["remove"]["path"]: row["remove"]["deletionVector"] for row in rows if row["remove"]} == {
        "c": vector(2).to_json(),
        "d": None,
    }


def test_actions_with_vectors_survive_as_json() -> None:
    actions = (add("a", 1), remove("a", 0))
    assert decode(encode(actions), "f") == actions
    lines = [json.loads(line) for line in encode(actions).splitlines()]
    assert [line[kind]["deletionVector"] for line, kind in zip(lines, ("add", "remove"), strict=True)] == [
        vector(1).to_json(),
        vector(0).to_json(),
    ]


def test_a_commit_may_add_a_file_again_under_another_vector_alone(tmp_path: Path) -> None:
    log = DeltaLog(open_store(tmp_path))
    protocol = Protocol(1, 7, frozenset(), frozenset({"lakemerge"}))
    first = log.commit(None, lambda _: Attempt([protocol, DATA, add("a", None)]), operation="WRITE", parameters={})
    assert isinstance(first, Committed)
    again: list[Action] = [add("a", 0), remove("a", None)]
    done = log.commit(first.snapshot, lambda _: Attempt(again), operation="WRITE", parameters={})
    assert isinstance(done, Committed)
    second = done.snapshot
    assert second.files == {"a": add("a", 0)}
    contradictions: list[list[Action]] = [
        [add("a", 0), remove("a", 0)],
        [add("a", 0), add("a", 1)],
        [remove("a", 0), remove("a", None)],
    ]
    for actions in contradictions:
        with pytest.raises(InputError, match="a commit"):
            log.commit(second, lambda _, told=actions: Attempt(told), operation="WRITE", parameters={})  # type: ignore[misc]
    assert log.snapshot().files == {"a": add("a", 0)}
