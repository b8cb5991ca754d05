"""``explain``: the sentences, where records come from, and what is said where history ends."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakemerge import DELETE, InputError, LakeTable, RowMerger, VersionNotFoundError
from lakemerge.delta import DeltaLog
from lakemerge.ingest import Files
from lakemerge.testing.counting import CountingStore
from mergers.row import Record
from tests.packages import needs_newer_arrow
from tests.unit.faults import create, frame, open_over

NOW = dt.timedelta(0)
FORGOTTEN = "the delete of version 5 is no longer remembered"


def told(table: LakeTable, key: int = 7, since: int | None = 0) -> list[tuple[int, str | None, str]]:
    found = table.explain({"k": key}, since)
    assert found.row == table.get({"k": key})
    return [(step.version, step.kind, step.words) for step in found.steps]


def history(path: Path) -> LakeTable:
    table = create(path)
    table.upsert(frame([(7, 100, "a"), (8, 100, "x")]))
    table.upsert(frame([(7, 200, "b")]), txn=("nightly", 3), info={"file": "orders.csv"})
    table.upsert(frame([(7, 150, "c")]))
    table.upsert(frame([(7, 300)], ["k", "o"]))
    table.delete(frame([(7, 400)], ["k", "o"]))
    table.upsert(frame([(7, 350, "z")]))
    return table


STORY = [
    (1, "+U", "applied: a new row, as the first write of the table left it"),
    (2, "+U", "applied: set v"),
    (3, "+U", "ignored: o 150 is older than 200 of version 2"),
    (4, "+U", "applied: newer, with the values that the row had; v kept, unset"),
    (5, "-D", "deleted: the row is gone, and o 400 is remembered"),
    (6, "+U", "ignored: o 350 is older than 400 of version 5"),
]


def test_each_record_and_where_it_came_from(tmp_path: Path) -> None:
    table = history(tmp_path / "t")
    found = table.explain({"k": 7})
    assert [(s.version, s.kind, s.words) for s in found.steps] == STORY
    assert (found.key, found.begins, found.row, found.version, found.notes) == ({"k": 7}, 1, None, 6, ())
    second = found.steps[1]
    assert second.values == {"k": 7, "o": 200, "v": "b"}
    assert second.ordering == (200,)
    assert (second.before, second.after) == ({"k": 7, "o": 100, "v": "a"}, {"k": 7, "o": 200, "v": "b"})
    assert (second.source["application"], second.source["number"]) == ("nightly", 3)
    assert second.source["info"] == {"file": "orders.csv"}
    assert (second.row_index, second.timestamp_ms) == (0, table.history()[-3].timestamp_ms)
    assert (tmp_path / "t" / second.file).exists()
    assert found.steps[3].values == {"k": 7, "o": 300}


@pytest.mark.parametrize("service", ["logs", "minor", "full", "rescale", "logs and full"])
def test_services_change_nothing_of_what_is_told(tmp_path: Path, service: str) -> None:
    table = history(tmp_path / "t")
    if "logs" in service:
        table.compact_logs()
    if service == "rescale":
        table.rescale(buckets=4)
    elif service != "logs":
        table.compact(minor=service == "minor")
    assert told(table) == STORY
    assert told(table, since=3) == STORY[3:]
    # By default only what the base file has not taken up.
    assert told(table, since=None) == (STORY if service == "logs" else [])


def test_what_is_vacuumed_is_said_to_be_gone(tmp_path: Path) -> None:
    table = history(tmp_path / "t")
    table.upsert(frame([(7, 500, "w")]))
    table.compact_logs()
    table.vacuum(dry_run=False, retention=NOW, enforce_retention=False)
    found = table.explain({"k": 7}, 0)
    # The log compaction kept the records that decide, and the originals are gone.
    assert [step.version for step in found.steps][-1] == 7
    assert all("rewrote it" in s.source["note"] for s in found.steps[1:])
    assert any("consolidated" in note for note in found.notes)
    table.compact()
    table.vacuum(dry_run=False, retention=NOW, enforce_retention=False)
    found = table.explain({"k": 7}, 0)
    assert found.steps == ()
    assert found.start == found.row == {"k": 7, "o": 500, "v": "w"}
    assert any("history begins after version" in note and "not known any more" in note for note in found.notes)
    with pytest.raises(VersionNotFoundError, match=r"known from version .* since=0"):
        table.explain({"k": 7}, 2)


def test_expiry_restore_and_late_records(tmp_path: Path) -> None:
    table = history(tmp_path / "t")
    table.compact()
    expired = table.expire_tombstones(retention=NOW).version
    late = table.upsert(frame([(7, 350, "late")])).version
    end = [
        (expired, None, f"expired: dropped by expiry of version {expired}: {FORGOTTEN}"),
        (late, "+U", "applied: a new row"),
    ]  # fmt: skip
    assert told(table) == STORY + end
    assert told(table, since=None) == end
    restored = table.restore(version=3).version
    assert told(table) == STORY[:3]
    assert told(table, since=2) == STORY[2:3]
    # What was restored away is no history: after the restore there is none yet.
    assert told(table, since=late) == []
    table.upsert(frame([(7, 210, "again")]))
    assert told(table, since=late) == [(restored + 1, "+U", "applied: set v")]


def test_alter_and_evolution(tmp_path: Path) -> None:
    table = history(tmp_path / "t")
    table.alter(add_columns="n INT")
    table.upsert(frame([(7, 410, "new", 1)], ["k", "o", "v", "n"], n=pa.int32()))
    table.alter(widen={"n": "BIGINT"})
    table.upsert(frame([(7, 420, 2**40)], ["k", "o", "n"], n=pa.int64()))
    table.compact()
    table.alter(merger="commit-time")
    table.upsert(frame([(7, 1, "older")]))
    steps = table.explain({"k": 7}, 0).steps[len(STORY) :]
    assert [step.words for step in steps] == [
        "applied: a new row, after a delete",
        "applied: set n; v kept, unset",
        "applied: set v; n kept, unset",
    ]
    assert [step.after for step in steps] == [
        {"k": 7, "o": 410, "v": "new", "n": 1},
        {"k": 7, "o": 420, "v": "new", "n": 2**40},
        {"k": 7, "o": 1, "v": "older", "n": 2**40},
    ]


def test_delete_where_and_keys_that_never_were(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    table.upsert(frame([(7, 100, "a")]))
    table.delete_where("v = 'a'")
    assert told(table)[-1] == (2, "clear", "deleted: by a transaction; o 100 is remembered")
    nobody = table.explain({"k": 99}, 0)
    assert (nobody.steps, nobody.row) == ((), None)
    assert LakeTable.create(tmp_path / "e", "k INT", key=["k"]).explain({"k": 1}).steps == ()


def test_a_savepoint_and_a_pinned_version_tell_their_own_story(tmp_path: Path) -> None:
    table = history(tmp_path / "t")
    table.compact()
    earlier = LakeTable.open(tmp_path / "t", version=4)
    assert told(earlier) == STORY[:4]


AGGREGATE: dict[str, Any] = {"aggregates": {"n": "sum", "m": "max", "c": "count"}}


def test_words_of_aggregates(tmp_path: Path) -> None:
    table = LakeTable.create(
        tmp_path / "t", "k INT, n BIGINT, m INT, c INT, s STRING", key=["k"], merger="aggregate",
        options={**AGGREGATE, "ignore_retract": ["m"]},
    )  # fmt: skip

    def write(*rows: tuple[Any, ...]) -> None:
        names = ["k", "n", "m", "c", "s", "op"]
        columns = dict(zip(names, zip(*rows, strict=True), strict=True))
        table.upsert(pa.table({name: list(values) for name, values in columns.items()}), kind_column="op")

    write((1, 7, 9, 1, "a", "+U"))
    write((1, 3, 5, None, None, "+U"))
    write((1, 0, 2, None, None, "+U"))
    write((1, 4, 5, 1, None, "-U"))
    write((1, None, None, None, "b", "+U"))
    words = [step.words for step in table.explain({"k": 1}, 0).steps]
    assert words[1:] == [
        "folded: n is sum 7 + 3",
        "unchanged: n is sum 10 + 0; m is max of 9 and 2; c is count 1 + 0",
        "retracted: n is sum 10 - 4; c is count 1 - 1",
        "applied: set s",
    ]


def test_words_of_sequence_groups(tmp_path: Path) -> None:
    table = LakeTable.create(
        tmp_path / "t", "k INT, s1 INT, a STRING, s2 INT, b STRING", key=["k"], merger="partial-update",
        options={"sequence_groups": {"s1": ["a"], "s2": ["b"]}},
    )  # fmt: skip
    for s1, a, s2, b in [(5, "a5", 5, "b5"), (4, "a4", 6, "b6"), (3, "a3", None, None)]:
        row = {"k": [1], "s1": [s1], "a": [a], "s2": [s2], "b": [b]}
        table.upsert(pa.table(row, schema=pa.schema([f.with_nullable(True) for f in table.schema])))
    words = [step.words for step in table.explain({"k": 1}, 0).steps]
    assert words[1] == "applied: set s2, b; group s1: 4 is older than 5"
    assert words[2].startswith("ignored: partial-update keeps the row as it was; group s1: 3 is older than 5")


class Longest(RowMerger):
    id = "5b2b3f0e-6f10-4a5b-9f5e-2b4d6c1f7a11"
    name = "longest"

    def merge(self, older: Record, newer: Record) -> Any:
        if newer["v"] == "drop":
            return DELETE
        return newer if len(newer["v"]) > len(older["v"]) else {**older, "o": older["o"] + 10}


def test_a_mergers_own_class(tmp_path: Path) -> None:
    table = LakeTable.create(
        tmp_path / "t", "k BIGINT, o BIGINT, v STRING", key=["k"], merger="longest", mergers=[Longest]
    )
    for o, v in [(1, "aa"), (2, "bbb"), (3, "c"), (4, "drop")]:
        table.upsert(frame([(7, o, v)]))
    found = table.explain({"k": 7}, 0)
    assert [step.words for step in found.steps] == [
        "applied: a new row, as the first write of the table left it",
        "applied: set o, v",
        "folded: o is 12, of 2 and 3",
        "deleted: the record's values mark it as a delete; the row is gone, and the delete is not remembered",
    ]
    assert (found.steps[2].before, found.steps[2].after) == (
        {"k": 7, "o": 2, "v": "bbb"},
        {"k": 7, "o": 12, "v": "bbb"},
    )


def test_a_total_that_does_not_fit_is_told(tmp_path: Path) -> None:
    table = LakeTable.create(
        tmp_path / "t", "k INT, n TINYINT", key=["k"], merger="aggregate", options={"aggregates": {"n": "sum"}}
    )
    for n in (100, 100, -100):
        table.upsert(pa.table({"k": pa.array([1], pa.int32()), "n": pa.array([n], pa.int8())}))
    steps = table.explain({"k": 1}, 0).steps
    assert "does not fit" in steps[1].words
    assert steps[1].after is None
    assert steps[2].words == "folded: the row can be read again"
    assert steps[2].after == {"k": 1, "n": 100}


@pytest.mark.parametrize(
    ("kind", "n", "words", "after"),
    [
        ("-U", 100, "retracted: the row can be read again", {"k": 1, "n": 100}),
        ("-U", -100, "retracted: the sum", None),
        ("-D", 100, "deleted: the row, which could not be read, is gone", None),
    ],
)
def test_what_is_taken_back_from_a_total_that_does_not_fit(
    tmp_path: Path, kind: str, n: int, words: str, after: dict[str, int] | None
) -> None:
    options = {"aggregates": {"n": "sum"}, "remove_record_on_delete": True}
    table = LakeTable.create(tmp_path / "t", "k INT, n TINYINT", key=["k"], merger="aggregate", options=options)
    for each, value in [("+U", 100), ("+U", 100), (kind, n)]:
        rows = {"k": pa.array([1], pa.int32()), "n": pa.array([value], pa.int8()), "_op": pa.array([each])}
        table.upsert(pa.table(rows), kind_column="_op")
    last = table.explain({"k": 1}, 0).steps[-1]
    assert last.words.startswith(words)
    assert last.verdict == words.split(":", maxsplit=1)[0]
    assert last.after == after


def test_files_of_an_ingest_window(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "one.json").write_text('{"k": 7, "o": 1, "v": "a"}\n')
    table = create(tmp_path / "t")
    table.ingest("orders", Files(tmp_path / "in", format="json")).run()
    (tmp_path / "in" / "two.json").write_text('{"k": 7, "o": 2, "v": "b"}\n')
    table.ingest("orders", Files(tmp_path / "in", format="json")).run()
    found = table.explain({"k": 7})
    assert [step.source["job"] for step in found.steps] == ["orders", "orders"]
    (file,) = found.steps[1].source["files"]
    assert file["path"].endswith("two.json")
    assert (file["offset"], file["rows"]) == (0, 1)
    received = [event for event in table.lineage() if event.kind == "RECEIVE"]
    assert [event.inputs[0].rpartition("/")[2] for event in received] == ["one.json", "two.json"]


def test_shapes_of_the_answer(tmp_path: Path) -> None:
    table = history(tmp_path / "t")
    found = table.explain({"k": 7})
    arrow = found.to_arrow()
    assert arrow.column("words").to_pylist() == [words for _, _, words in STORY]
    assert arrow.column("before").to_pylist()[1] == '{"k":7,"o":100,"v":"a"}'
    text = repr(found)
    assert all(words in text for _, _, words in STORY)
    assert "nightly 3, file orders.csv" in text
    table.upsert(frame([(7, 900, "<script>")]))
    html = table.explain({"k": 7})._repr_html_()
    assert "&lt;script&gt;" in html
    assert "<script>" not in html
    assert "read amplification" in table._repr_html_()
    result = table.compact(minor=True)
    assert "minor compaction" in result._repr_html_()
    assert "<th style='text-align:left'>version</th>" in table.upsert(frame([(1, 1, "a")]))._repr_html_()
    assert "base_rows" in table.detail()._repr_html_()
    with pytest.raises(InputError, match="mapping"):
        table.explain(7)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="since must be a version"):
        table.explain({"k": 7}, 99)


@needs_newer_arrow("reads the columns of a local file one by one")
def test_requests_are_bounded(tmp_path: Path) -> None:
    """One look at the log, the base file, and for each pending commit its log file and its commit file."""
    table = create(tmp_path / "t", buckets=4, properties={"lakemerge.maintenance": "off"})
    table.upsert(frame([(k, 1, f"v{k}") for k in range(400)]))
    for number in range(20):
        table.upsert(frame([(k, number, "w") for k in range(0, 400, 7)]))
    quiet, _ = open_over(tmp_path / "t")
    store = CountingStore(quiet.opened.handle.store)
    table = LakeTable(replace_store(quiet, store), quiet.opened.view.snapshot, pinned=False, spark=None)
    table.explain({"k": 7})
    calls = store.counts().calls
    assert {name: calls[name] for name in ("list", "get", "open_input", "stat")} == {
        "list": 1, "get": 21, "open_input": 21, "stat": 0,
    }  # fmt: skip
    assert calls["read"] <= 2 * 21


def replace_store(table: LakeTable, store: CountingStore) -> Any:
    return replace(table.opened.handle, store=store, log=DeltaLog(store))
