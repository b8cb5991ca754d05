"""Sets and clears outside of the merge: damage, feed, consumers, provenance, checks, expiry and large keys."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakemerge import FrameError, LakeTable, RecordRefusedError, TableDamagedError
from lakemerge.transactions import changing
from lakemerge.write import frame as frames
from tests.unit.faults import create, frame, rows_of, state_of

NOW = dt.timedelta(0)


def loaded(path: Path, **options: Any) -> LakeTable:
    table = create(path, **options)
    table.upsert(frame([(1, 5, "a"), (2, 5, "b"), (3, 5, "a")]))
    return table


READS: Mapping[str, Callable[[LakeTable], object]] = {
    "read": lambda t: t.to_arrow(),
    "look-up": lambda t: t.get({"k": 1}),
    "compaction": lambda t: t.compact(),
    "minor compaction": lambda t: t.compact(minor=True),
    "log compaction": lambda t: t.compact_logs(size_ratio=float("inf")),
    "feed": lambda t: t.changes(since=1).read_all(),
    "explain": lambda t: t.explain({"k": 1}),
    "followers": lambda t: list(t.follow(poll=None)),
}


def test_any_other_kind_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = loaded(tmp_path / "t", properties={"lakemerge.maintenance": "off"})
    for module in (changing, frames):
        monkeypatch.setattr(module, "SET", 6)
    table.update_where("k = 1", {"v": "'x'"})
    table.upsert(frame([(1, 7, "y")]))
    monkeypatch.undo()
    for read in READS.values():
        with pytest.raises(TableDamagedError, match=r"'_lm_kind' holds \[6\]"):
            read(LakeTable.open(tmp_path / "t"))
    found = LakeTable.check(tmp_path / "t")
    assert not found.ok
    assert any("'_lm_kind' holds [6]" in str(finding) for finding in found.findings)


def test_users_cannot_write_sets_and_clears(tmp_path: Path) -> None:
    table = loaded(tmp_path / "t")
    for symbol in ("set", "clear", "4", "5"):
        with pytest.raises(FrameError, match="row kinds are"):
            table.upsert(frame([(1, 9, "x", symbol)], ("k", "o", "v", "op")), kind_column="op")
    numbers = frame([(1, 9, "x")]).append_column("_lm_kind", pa.array([4], pa.int8()))
    for kind_column in (None, "_lm_kind"):
        with pytest.raises(FrameError, match="_lm_kind"):
            table.upsert(numbers, kind_column=kind_column)


def test_a_transaction_that_changes_nothing_is_no_change(tmp_path: Path) -> None:
    table = loaded(tmp_path / "t")
    since = table.version
    assert table.update_where("true", {"v": "v"}).rows == 3
    assert table.changes(since=since).read_all().num_rows == 0
    table.update_where("v = 'a'", {"v": "concat('', case when k = 1 then 'c' else v end)"})
    changes = table.changes(since=since).read_all().to_pylist()
    assert [(row["_row_kind"], row["k"], row["v"]) for row in changes] == [("-U", 1, "a"), ("+U", 1, "c")]
    table.delete_where("k = 2")
    table.merge(frame([(2, 1, "new")]), "target.k = source.k").whenNotMatchedInsertAll().execute()
    net = table.changes(since=since, net=True).read_all().to_pylist()
    assert [(row["_row_kind"], row["k"], row["v"]) for row in net] == [
        ("-U", 1, "a"), ("+U", 1, "c"), ("-U", 2, "b"), ("+U", 2, "new"),
    ]  # fmt: skip


def test_a_consumer_follows_transactions_and_holds_their_files(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = loaded(path)
    table.consumers.register("c")
    table.update_where("k = 1", {"v": "'set'", "o": 1})
    table.delete_where("k = 2")
    table.upsert(frame([(1, 2, "up"), (2, 4, "late")]))
    table.compact()
    table.vacuum(dry_run=False, retention=NOW, enforce_retention=False)
    found = [
        (row["_row_kind"], row["k"], row["o"], row["v"])
        for batch in LakeTable.open(path).follow("c", poll=None)
        for row in batch.to_pylist()
    ]
    assert found == [
        ("-U", 1, 5, "a"), ("+U", 1, 1, "set"), ("-D", 2, 5, "b"), ("-U", 1, 1, "set"), ("+U", 1, 2, "up"),
    ]  # fmt: skip


def test_not_null_and_the_mergers_values_are_checked(tmp_path: Path) -> None:
    """Without the exemption of records that a merger takes for deletes."""
    marked = {"delete_when": {"column": "v", "values": ["gone"]}}
    table = create(tmp_path / "a", schema="k BIGINT, o BIGINT, v STRING, n INT NOT NULL", options=marked)
    rows = pa.table({"k": [1], "o": [1], "v": ["x"], "n": pa.array([1], pa.int32())})
    table.upsert(rows)
    version = table.version
    source = pa.table({"k": [1, 2], "o": [1, 1], "v": ["gone", "gone"], "n": pa.array([None, None], pa.int32())})
    deeds: tuple[Callable[[], object], ...] = (
        lambda: table.update_where("true", {"n": None, "v": "'gone'"}),
        lambda: table.merge(source, "target.k = source.k").whenMatchedUpdateAll().execute(),
        lambda: table.merge(source, "target.k = source.k").whenNotMatchedInsertAll().execute(),
    )
    for deed in deeds:
        with pytest.raises(FrameError, match="'n' is NOT NULL and null in 1 row"):
            deed()
    sketches = LakeTable.create(
        tmp_path / "b", "k BIGINT, s BINARY", key=["k"], merger="aggregate",
        options={"aggregates": {"s": "theta_sketch"}}, buckets=1,
    )  # fmt: skip
    sketches.upsert(pa.table({"k": [1], "s": pa.array([None], pa.binary())}))
    with pytest.raises(RecordRefusedError):
        sketches.update_where("k = 1", {"s": b"broken"})
    files = create(tmp_path / "c", schema="k BIGINT, f STRING, p BIGINT, op STRING", ordering=["f", "p"],
                   merger="debezium-mysql", options={"op_column": "op"})  # fmt: skip
    files.upsert(pa.table({"k": [1], "f": ["x.1"], "p": [1], "op": ["u"]}))
    with pytest.raises(RecordRefusedError):
        files.update_where("true", {"f": "'no number'"})
    assert (table.version, sketches.version, files.version) == (version, 1, 1)


@pytest.mark.parametrize("compacted", ["full", "minor", "logs"])
def test_a_cleared_key_is_forgotten_by_the_version_of_its_clear(compacted: str, tmp_path: Path) -> None:
    """A clear's tombstone is as young as the clear, whatever was deleted before; a set ends it."""
    path = tmp_path / "t"
    table = loaded(path)
    table.delete(pa.table({"k": [1], "o": [9]}))
    table.compact()
    table.merge(frame([(1, 3, "again")]), "target.k = source.k").whenNotMatchedInsertAll().execute()
    table.delete_where("k = 1 OR k = 2")
    if compacted == "logs":
        table.compact_logs(size_ratio=float("inf"))
    table.compact(minor=compacted == "minor")
    table.upsert(frame([(1, 2, "late"), (2, 4, "late"), (3, 4, "late")]))
    assert state_of(path) == [(3, 5, "a")]
    table.compact()
    table.expire_tombstones(retention=NOW)
    table.upsert(frame([(1, 1, "old"), (2, 1, "old")]))
    assert state_of(path) == [(1, 1, "old"), (2, 1, "old"), (3, 5, "a")]


def test_a_key_larger_than_a_portion_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records of a key are folded a few at a time, with sets and clears among them."""
    monkeypatch.setattr("mergers.kernel.portion_bytes", lambda: 100)
    monkeypatch.setattr("mergers.kernel.is_large", lambda *_: True)
    table = LakeTable.create(
        tmp_path / "t", "k BIGINT, n BIGINT, v STRING", key=["k"], merger="aggregate",
        options={"aggregates": {"n": "sum"}}, buckets=1,
    )  # fmt: skip
    total: dict[int, int] = {}
    for number in range(30):
        table.upsert(pa.table({"k": [1, 2], "n": [number, 1], "v": ["x" * 60, None]}))
        total = {k: total.get(k, 0) + n for k, n in ((1, number), (2, 1))}
        if number % 7 == 3:
            table.update_where("k = 1", {"n": 1000})
            total[1] = 1000
        if number % 11 == 5:
            table.delete_where("k = 2")
            del total[2]
        assert {row["k"]: row["n"] for row in table.to_arrow().to_pylist()} == total


def test_what_happened_is_told(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = loaded(path)
    table.update_where("k = 1", {"v": "'set'", "o": 1})
    table.delete_where("k = 1")
    table.upsert(frame([(1, 0, "late"), (1, 1, "equal")]))
    text = str(table.explain({"k": 1}))
    assert "set" in text
    assert "clear" in text
    operations = [entry.operation for entry in table.history()]
    assert operations == ["UPSERT", "DELETE", "UPDATE", "UPSERT", "CREATE TABLE"]
    blind = [entry.info["isBlindAppend"] for entry in table.history()[:3]]
    assert blind == [True, False, False]
    assert rows_of(table.to_arrow()) == state_of(path) == [(1, 1, "equal"), (2, 5, "b"), (3, 5, "a")]
    assert LakeTable.check(path).ok
