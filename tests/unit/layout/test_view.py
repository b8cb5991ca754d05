"""File slices: which base file, which key range, which log blocks; made by hand, no files."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakemerge import LakeTable, Settings
from lakemerge.delta import AddFile, Snapshot
from lakemerge.delta.vectors import DeletionVector
from lakemerge.errors import TableDamagedError
from lakemerge.format.base_file import BaseFile, BaseFiles, DecodedFiles
from lakemerge.format.keys import BucketId, Key, key_from_json, key_to_json
from lakemerge.format.log_block import LogBlock, LogFile
from lakemerge.format.names import LOG_DOMAIN_PREFIX, SLICE_TAG, WINNER_TAG
from lakemerge.layout import view as view_module
from lakemerge.layout.view import FileSlice, MadeSlices, build_file_slices
from tests.relink import relink

FILE = LogFile("_lakemerge/log/x.parquet", 100, ("k",))


def base(
    lower: int | None, *, through: int = 5, bucket: int = 0, buckets: int = 4, partition: tuple[str, ...] = ()
) -> BaseFile:
    bound: Key | None = None if lower is None else (lower,)
    tag = BaseFile.tag(bucket=bucket, buckets=buckets, lower=bound, through=through, ordinal=7, rows=3, tombstones=None)
    names = [f"p{i}" for i in range(len(partition))]
    path = f"base/{partition}{bucket}/{lower}"
    add = AddFile(path, dict(zip(names, partition, strict=True)), 1000, 0, True, tags={SLICE_TAG: tag})
    return BaseFile.of(add, names)


def block(
    low: int | None,
    high: int | None,
    *,
    version: int = 6,
    bucket: int = 0,
    buckets: int = 4,
    partition: tuple[str, ...] = (),
) -> LogBlock:
    bounds: list[Key | None] = [None if bound is None else (bound,) for bound in (low, high)]
    return LogBlock(FILE, 0, 1, BucketId(partition, bucket), buckets, 2, 50, bounds[0], bounds[1], version)


def file_slices(
    files: list[BaseFile], blocks: list[LogBlock], buckets: int = 4
) -> dict[tuple[int, Key | None], FileSlice]:
    found = list(build_file_slices(files, blocks, buckets=buckets))
    assert len({(file_slice.bucket_id, file_slice.lower) for file_slice in found}) == len(found)
    return {(file_slice.bucket_id.bucket, file_slice.lower): file_slice for file_slice in found}


def test_files_and_blocks_meet_in_their_slice() -> None:
    found = file_slices([base(None, bucket=1)], [block(1, 2, bucket=2), block(3, 4, bucket=1)])
    assert found.keys() == {(1, None), (2, None)}
    assert found[1, None].blocks == (block(3, 4, bucket=1),)
    assert (found[2, None].base, found[2, None].merged_through, found[2, None].buckets) == (None, -1, 4)
    assert found[2, None].stored_bytes == 50
    assert found[1, None].stored_bytes == 1050
    assert not file_slices([], [])


@pytest.mark.parametrize(
    ("low", "high", "where"),
    [
        (0, 9, [None]),
        (9, 10, [None, (10,)]),
        (10, 19, [(10,)]),
        (19, 20, [(10,), (20,)]),
        (0, 99, [None, (10,), (20,)]),
        (20, 20, [(20,)]),
        (None, 5, [None]),
        (25, None, [(20,)]),
        (None, None, [None, (10,), (20,)]),
    ],
)
def test_a_block_is_live_where_its_keys_may_be(low: int | None, high: int | None, where: list[Key | None]) -> None:
    """Bounds of a file slice: the lower one belongs to it, the upper one to the next."""
    found = file_slices([base(20), base(None), base(10)], [block(low, high)])
    assert [file_slice.lower for file_slice in found.values() if file_slice.blocks] == where
    assert {file_slice.lower: file_slice.upper for file_slice in found.values()} == {
        None: (10,),
        (10,): (20,),
        (20,): None,
    }


def test_a_block_is_live_above_the_watermark_of_each_file() -> None:
    files = [base(None, through=6), replace(base(10, through=5))]
    found = file_slices(files, [block(0, 99, version=version) for version in (5, 6, 7)])
    assert [b.version for b in found[0, None].blocks] == [7]
    assert [b.version for b in found[0, (10,)].blocks] == [6, 7]
    assert not found[0, None].is_clean
    assert file_slices(files, [block(0, 99, version=5)])[0, None].is_clean


@pytest.mark.parametrize(
    ("bucket", "buckets", "where"),
    [(5, 8, {1}), (3, 4, {3}), (1, 2, {1, 3}), (0, 1, {0, 1, 2, 3})],
)
def test_blocks_of_another_bucket_count(bucket: int, buckets: int, where: set[int]) -> None:
    """5 of 8 is 1 of 4; 1 of 2 is 1 or 3 of 4."""
    given = block(1, 2, bucket=bucket, buckets=buckets)
    assert {file_slice.bucket_id.bucket for file_slice in file_slices([], [given]).values()} == where
    assert {number for number in range(4) if given.covers(BucketId((), number), 4)} == where
    assert not given.covers(BucketId(("x",), min(where)), 4)


def test_partitions_are_kept_apart() -> None:
    found = list(build_file_slices([base(None, partition=("a",))], [block(1, 1, partition=("b",))], buckets=4))
    assert {(file_slice.bucket_id.partition, file_slice.is_clean) for file_slice in found} == {
        (("a",), True),
        (("b",), False),
    }


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ([base(10)], "do not divide its keys"),
        ([base(None), replace(base(None), ordinal=8)], "do not divide its keys"),
        ([base(None, buckets=8)], "8 buckets in a table of 4"),
    ],
)
def test_files_that_make_no_layout(files: list[BaseFile], says: str) -> None:
    with pytest.raises(TableDamagedError, match=says):
        file_slices(files, [])


KEYS: list[Key] = [
    (1, "a"),
    (-(2**63),),
    ("",),
    (b"\x00\xff",),
    (decimal.Decimal("-1.50"), b""),
    ("é\U0001f600", 2**63 - 1),
]


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_keys_go_through_json(key: Key) -> None:
    assert key_from_json(key_to_json(key)) == key
    tag = BaseFile.tag(bucket=1, buckets=2, lower=key, through=3, ordinal=4, rows=5, tombstones="t")
    add = AddFile("p", {}, 1, 0, True, tags={SLICE_TAG: tag})
    file = BaseFile.of(add, ())
    assert (file.lower, file.tombstones, file.merged_through, file.ordinal, file.rows) == (key, "t", 3, 4, 5)
    assert file.bucket_id == BucketId((), 1)


@pytest.mark.parametrize(
    "body",
    ["1", '["a"]', '{"bucket": 1}', "{", '{"bucket":1,"buckets":2,"through":0,"ordinal":0,"rows":0,"from":[1.5]}'],
)
def test_tags_that_cannot_be_read(body: str) -> None:
    with pytest.raises(TableDamagedError, match=r"'p'.*lakemerge\.slice"):
        BaseFile.of(AddFile("p", {}, 1, 0, True, tags={SLICE_TAG: body}), ())


def test_a_later_version_decodes_only_its_new_files(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded, seen = DecodedFiles(), list[str]()
    right = BaseFile.of

    def counted(add: AddFile, names: list[str]) -> BaseFile:
        seen.append(add.path)
        return right(add, names)

    monkeypatch.setattr(BaseFile, "of", staticmethod(counted))
    first = [base(None, bucket=number).add for number in range(3)]
    paths = [add.path for add in first]
    adds = dict(zip(paths, first, strict=True))
    files = decoded.read(adds, [], (int,))
    assert [files.by_path[path].bucket_id.bucket for path in paths] == [0, 1, 2]
    del seen[:]
    changed = replace(first[1], size_bytes=7)
    again = decoded.read(adds | {changed.path: changed}, [], (int,))
    assert seen == [changed.path]
    assert [again.by_path[path].add.size_bytes for path in paths] == [1000, 7, 1000]
    assert again.by_path[paths[0]] is files.by_path[paths[0]]
    del seen[:]
    one = decoded.read({paths[0]: first[0]}, [], (str,))
    assert list(one.by_path.values()) == [files.by_path[paths[0]]], "a file without bounds fits any key"
    assert seen == [paths[0]], "what a tag means depends on the table's definition"
    bounded = base(3).add
    with pytest.raises(TableDamagedError, match="the tag of file"):
        decoded.read({bounded.path: bounded}, [], (str,))


@pytest.mark.parametrize("seed", range(20))
def test_files_of_a_later_version_are_those_that_are_decoded_anew(seed: int) -> None:
    """Files come, go, come again with another ``add`` or deletion vector; versions are read out of order."""
    draw, decoded, versions = random.Random(seed), DecodedFiles(), [dict[str, AddFile]()]
    for _ in range(12):
        adds = dict(versions[-1])
        for path in draw.sample(sorted(adds), min(len(adds), draw.randrange(3))):
            if draw.random() < 0.5:
                del adds[path]
            else:
                vector = draw.choice([None, DeletionVector("x", draw.randrange(9), 1, 1)])
                adds[path] = replace(adds[path], size_bytes=draw.randrange(1, 99), vector=vector)
        for _ in range(draw.randrange(3)):
            bucket, lower = draw.randrange(3), draw.choice([None, 1, 2])
            file = base(lower, bucket=bucket).add
            tags = file.tags if draw.random() < 0.7 else {WINNER_TAG: "{}"}
            adds[file.path] = replace(file, tags=tags)
        versions.append(adds)
    earlier: list[tuple[BaseFiles, dict[BucketId, list[str]]]] = []
    for adds in (*versions, *draw.sample(versions, 6)):
        found, anew = decoded.read(adds, [], (int,)), DecodedFiles().read(adds, [], (int,))
        assert dict(found.by_path) == dict(anew.by_path)
        assert found.of_minors == anew.of_minors
        assert _by_bucket(found) == _by_bucket(anew)
        assert all(found.by_path[path].add is adds[path] for path in found.by_path)
        earlier.append((found, _by_bucket(found)))
    assert all(_by_bucket(found) == was for found, was in earlier), "a version stays as it is"


def _by_bucket(files: BaseFiles) -> dict[BucketId, list[str]]:
    return {bucket_id: sorted(file.add.path for file in own) for bucket_id, own in files.by_bucket.items()}


@pytest.mark.parametrize("seed", range(6))
def test_file_slices_of_a_later_version_are_those_that_are_made_anew(tmp_path: Path, seed: int) -> None:
    """Upserts, overwrites, compactions of all kinds and a rescale; versions are looked at out of order."""
    draw, path = random.Random(seed), tmp_path / "t"
    table = LakeTable.create(
        path, "day STRING, k BIGINT, v BIGINT", key=["day", "k"], partition_by=["day"], buckets=2, ordering=["v"],
        settings=Settings(target_file_bytes=1_000, row_group_rows=5),
        properties={"lakemerge.maintenance": "off"},
    )  # fmt: skip
    snapshots: list[Snapshot] = []  # each made of the one before it, so that they share what did not change
    kinds = ["upsert"] * 6 + ["compact", "minor", "minor", "logs", "overwrite", "rescale", "delete", "expire"]
    first = ["upsert", "upsert", "overwrite", "compact", "delete", "compact", "expire", "upsert", "minor"]
    for number, step in enumerate([*first, *draw.choices(kinds, k=14)]):
        rows = [(draw.choice("abc"), k, number) for k in draw.sample(range(60), draw.randrange(6, 12))]
        columns = dict(zip(table.schema.names, map(list, zip(*rows, strict=True)), strict=True))
        frame = pa.table(columns, schema=table.schema)
        if step == "overwrite":
            rows_of_a = frame.filter(pc.equal(frame.column("day"), "a"))
            table.overwrite(draw.choice([rows_of_a, frame.slice(0, 0)]), where="day = 'a'")
        elif step == "rescale" and table.opened.view.config.buckets == 2:
            table.rescale(buckets=4)
        elif step in {"compact", "minor"}:
            # If one partition is compacted, the logs of a commit stay that has others, too.
            table.compact(minor=step == "minor", where=draw.choice(["day = 'a'", "day = 'b'", None]))
        elif step == "logs":
            table.compact_logs()
        elif step == "delete":
            table.delete(frame.select(["day", "k", "v"]))
        elif step == "expire":
            table.expire_tombstones(retention=dt.timedelta(0))
        else:
            table.upsert(frame)
        snapshots.append(table.opened.view.snapshot)
    handle = table.opened.handle
    for snapshot in [*snapshots, *draw.choices(snapshots, k=10)]:
        shared, alone = handle.view(snapshot), replace(handle, made=MadeSlices()).view(snapshot)
        if draw.random() < 0.3:  # logs of the others are decoded again afterwards
            assert handle.view(draw.choice(snapshots)).log_commits is not None
        if draw.random() < 0.5:  # a look-up makes some of them alone
            for bucket_id in draw.sample(sorted(alone.file_slices_by_bucket), min(2, len(alone.file_slices_by_bucket))):
                assert list(shared.file_slices_of(bucket_id)) == list(alone.file_slices_of(bucket_id))
        assert shared.file_slices_by_bucket == alone.file_slices_by_bucket, snapshot.version
        assert len(shared.file_slices) == len(alone.file_slices)
        blocks = {id(block) for commit in shared.log_commits for block in commit.blocks}
        assert {id(block) for each in shared.file_slices for block in each.blocks} <= blocks


def test_file_slices_of_much_older_versions_are_forgotten(tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path / "t", "k BIGINT", key=["k"], buckets=2)
    table.upsert(pa.table({"k": range(10)}))
    handle, view = table.opened.handle, table.opened.view
    known = view.file_slices
    assert [id(each) for each in handle.view(view.snapshot).file_slices] == list(map(id, known))
    handle.made.release(view.version + 64)
    assert [id(each) for each in handle.view(view.snapshot).file_slices] == list(map(id, known))
    handle.made.release(view.version + 65)
    assert not {id(each) for each in handle.view(view.snapshot).file_slices} & set(map(id, known))


def test_a_commit_leaves_file_slices_of_other_buckets_as_they_are(tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path / "t", "k BIGINT", key=["k"], buckets=8)
    table.upsert(pa.table({"k": range(100)}))
    table.upsert(pa.table({"k": range(100)}))
    before = table.opened.view
    known = dict(before.file_slices_by_bucket)
    were = {part: tuple(slices) for part, slices in known.items()}
    table.upsert(pa.table({"k": [7]}))
    after = table.opened.view
    assert after.version == before.version + 1
    changed = [part for part, slices in after.file_slices_by_bucket.items() if slices is not known[part]]
    assert len(changed) == 1
    assert {part: tuple(slices) for part, slices in before.file_slices_by_bucket.items()} == were
    assert len(after.file_slices_by_bucket[changed[0]][0].blocks) == len(known[changed[0]][0].blocks) + 1


def test_a_look_up_makes_the_file_slices_of_its_buckets_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[BucketId] = []
    right = view_module._file_slices_of

    def counted(bucket_id: BucketId, *rest: Any) -> Iterator[FileSlice]:
        made.append(bucket_id)
        return right(bucket_id, *rest)

    monkeypatch.setattr(view_module, "_file_slices_of", counted)
    table = LakeTable.create(tmp_path / "t", "k BIGINT, v STRING", key=["k"], buckets=8)
    table.upsert(pa.table({"k": list(range(100)), "v": ["a"] * 100}))
    table.upsert(pa.table({"k": [7], "v": ["b"]}))
    opened = LakeTable.open(tmp_path / "t")
    del made[:]
    assert opened.get({"k": 7}) == {"k": 7, "v": "b"}
    assert len(made) == 1
    assert opened.opened.view.file_slice_count == 8
    assert len(made) == 1
    assert len(opened.to_arrow()) == 100
    assert len(made) == len(set(made)) == 8


def test_buckets_that_are_not_there_are_not_kept(tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path / "t", "p STRING, k BIGINT", key=["p", "k"], partition_by=["p"], buckets=1)
    table.upsert(pa.table({"p": ["a"], "k": [1]}))
    assert [table.get({"p": f"none {number}", "k": 1}) for number in range(20)] == [None] * 20
    assert list(table.opened.view._made) == []
    assert table.get({"p": "a", "k": 1}) == {"p": "a", "k": 1}
    assert list(table.opened.view._made) == [BucketId(("a",), 0)]


def test_a_log_under_another_merger_is_damage_whichever_key_is_asked_for(tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path / "t", "k BIGINT, v STRING", key=["k"], buckets=8)
    table.upsert(pa.table({"k": list(range(100)), "v": ["a"] * 100}))
    table.upsert(pa.table({"k": [7], "v": ["b"]}))
    commit = tmp_path / "t" / "_delta_log" / f"{2:020}.json"
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    for line in lines:
        domain = line.get("domainMetadata", {})
        if domain.get("domain", "").startswith(LOG_DOMAIN_PREFIX):
            body = json.loads(domain["configuration"])
            domain["configuration"] = json.dumps(body | {"mergerEpoch": body["mergerEpoch"] + 1})
    commit.write_text("".join(json.dumps(line) + "\n" for line in lines))
    relink(tmp_path / "t")
    damaged = LakeTable.open(tmp_path / "t")
    for call in (
        damaged.to_arrow,
        partial(damaged.get, {"k": 7}),
        partial(damaged.get, {"k": 8}),
        partial(damaged.to_arrow, filter="k = 8"),
        partial(damaged.update_where, "k = 8", {"v": "'c'"}),
        partial(damaged.delete_where, "k = 8"),
    ):
        with pytest.raises(TableDamagedError, match="under another merger"):
            call()
    assert LakeTable.open(tmp_path / "t").version == 2
