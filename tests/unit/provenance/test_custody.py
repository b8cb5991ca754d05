"""Where replayed records came from, what left a table and for whom, links to other systems, and the search for them."""

from __future__ import annotations

import datetime as dt
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakemerge import InputError, LakeTable
from lakemerge.cli import main
from lakemerge.commits.appends import commit_load
from lakemerge.format.consumers import Sent, advanced, joined
from lakemerge.format.feed_offset import Offset
from lakemerge.ingest import Files
from lakemerge.report import report_html
from tests.unit.faults import create, frame, listing, rows_of


def kinds(table: LakeTable, **how: Any) -> list[tuple[str, int]]:
    return [(event.kind, event.version) for event in table.lineage(**how)]


def source(path: Path) -> LakeTable:
    table = create(path)
    table.upsert(frame([(7, 1, "paid"), (8, 1, "paid")]), info={"user": "loader"})
    table.upsert(frame([(7, 2, "cancelled")]), txn=("wms", 41), info={"user": "wms-service", "file": "cancel-2.csv"})
    return table


def test_a_replayed_record_tells_of_table_application_and_info(tmp_path: Path) -> None:
    table = source(tmp_path / "orders")
    table.replay(tmp_path / "mirror")
    mirror = LakeTable.open(tmp_path / "mirror")
    mirror.replay(tmp_path / "far")
    first, last = mirror.explain({"k": 7}, since=0).steps
    told = last.source["replayed"]
    assert (told["table"], told["version"], told["operation"]) == (table.url, 2, "UPSERT")
    assert (told["application"], told["number"]) == ("wms", 41)
    assert told["info"] == {"user": "wms-service", "file": "cancel-2.csv"}
    assert told["timestamp"] == table.history(limit=1)[0].timestamp_ms
    assert first.source["replayed"]["info"] == {"user": "loader"}, "of the first load, too"
    assert last.origin == f"version 2 of {table.url}, there by wms 41, user wms-service, file cancel-2.csv"
    # A replay of a replay tells of both.
    far = LakeTable.open(tmp_path / "far").explain({"k": 7}, since=0).steps[-1].source["replayed"]
    assert (far["table"], far["replayed"]["table"]) == (mirror.url, table.url)
    event = mirror.lineage(file="cancel-2.csv").events[-1]
    assert (event.kind, event.inputs) == ("REPLAY", (f"{table.url} version 2",))
    assert len(mirror.lineage(info={"user": "wms-service"})) == 1


def test_files_of_ingest_windows_are_told_to_the_other_table(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    table.upsert(frame([(1, 1, "a")]))
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "one.csv").write_text("k,o,v\n7,5,x\n")
    table.ingest("job", Files(tmp_path / "landing", format="csv")).run()
    table.replay(tmp_path / "again")
    other = LakeTable.open(tmp_path / "again")
    told = other.explain({"k": 7}).steps[-1].source["replayed"]
    assert (told["job"], [Path(file).name for file in told["files"]]) == ("job", ["one.csv"])
    for named in (table, other):
        found = named.lineage(file="one.csv")
        assert {event.version for event in found} == {2 if named is table else found.events[0].version}
        assert named.lineage(file="*.csv").events == found.events
        assert len(named.lineage(file="two.csv")) == 0
    assert [kind for kind, _ in kinds(table, file="one.csv")] == ["RECEIVE", "CREATE"], "the file, and what it became"


def forge(path: Path, version: int, info: dict[str, Any]) -> None:
    """Make a commit say more of itself, as a writer could that does not check what callers give it. What it says of
    itself is in no digest of it; it must be the last commit, because the next one has a digest of the whole file."""
    file = path / "_delta_log" / f"{version:020d}.json"
    first, rest = file.read_text().split("\n", 1)
    told = json.loads(first)
    told["commitInfo"] |= info
    file.write_text(json.dumps(told) + "\n" + rest)


def test_somebody_elses_info_is_no_replay(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    table.upsert(frame([(7, 1, "a")]))
    forge(tmp_path / "t", 1, {"replay": {"table": "forged", "version": 1}})
    table = LakeTable.open(tmp_path / "t")
    (step,) = table.explain({"k": 7}, since=0).steps
    assert step.source["info"] == {"replay": {"table": "forged", "version": 1}}
    assert kinds(table) == [("CREATE", 1)]


def test_files_of_a_replay_that_another_was_faster_than(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = source(tmp_path / "t")
    place = "lakemerge.provenance.replay.commit_load"

    def late(*args: Any, **how: Any) -> object:
        monkeypatch.setattr(place, commit_load)
        table.replay(tmp_path / "mirror")
        return commit_load(*args, **how)

    monkeypatch.setattr(place, late)
    table.replay(tmp_path / "mirror")
    mirror = LakeTable.open(tmp_path / "mirror")
    assert rows_of(mirror.to_arrow()) == rows_of(table.to_arrow())
    files = {path for path in listing(tmp_path / "mirror") if path.startswith("base/")}
    assert files == {base.add.path for base in mirror.opened.view.base_files}


def test_what_went_to_consumers(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    table.upsert(frame([(7, 1, "a")]))
    table.consumers.register("warehouse", present_rows=True)
    table.consumers.register("changes")
    assert not [kind for kind, _ in kinds(table) if kind == "SEND"], "nothing was read yet"
    for name in ("warehouse", "changes"):
        assert list(table.follow(name, poll=None)) or name == "changes"
    table.upsert(frame([(8, 1, "b")]))
    list(table.follow("warehouse", poll=None))
    sent = table.lineage(kind="SEND").events
    assert {event.outputs for event in sent} == {("consumer warehouse",), ("consumer changes",)}
    (first,) = [event for event in sent if event.outputs == ("consumer warehouse",)]
    assert first.words == "the rows of version 1, and the changes up to version 4 went to consumer warehouse"
    assert first.timestamp is not None
    assert abs(first.timestamp - dt.datetime.now(dt.UTC)) < dt.timedelta(hours=1)
    of_seven = table.lineage(key={"k": 7}, kind="SEND").events
    assert [event.outputs for event in of_seven] == [("consumer warehouse",)], "the other began after its record"
    assert len(table.lineage(3, kind="SEND")) == 2
    table.consumers.drop("warehouse")
    (kept,) = table.lineage(key={"k": 7}, kind=["SEND"]).events
    assert kept.words == first.words, "the events outlive the consumer"
    table.consumers.register("warehouse")
    assert len(table.lineage(key={"k": 7}, kind="SEND")) == 1


def test_moments_of_a_consumer_are_bounded() -> None:
    minute = 60_000
    sent = advanced([], Offset(3, of_rows=True), Offset(4), 1)
    assert sent == [Sent(3, 3, 1, 1, True)]
    assert advanced(sent, Offset(4), Offset(4, 2), 5) == sent, "in the middle of a version"
    sent = advanced(sent, Offset(4, 2), Offset(6), 5)
    assert sent == [Sent(3, 5, 1, 5, True)], "within a minute"
    for version in range(6, 1000):
        sent = advanced(sent, Offset(version), Offset(version + 1), version * minute)
    assert len(sent) == 256
    assert (sent[0].first, sent[-1].last) == (3, 999)
    assert all(one.last + 1 == other.first for one, other in pairwise(sent))
    assert [part.holds(2) for part in sent[:2]] == [True, False], "with the rows went what was before"
    assert len(joined(sent, 10)) == 10


def test_notes_of_what_was_sent_and_what_belongs_to_it(tmp_path: Path) -> None:
    table = source(tmp_path / "t")
    rows = rows_of(table.to_arrow())
    sent = table.record_send("s3://bucket/export.csv", since=1, keys={"k": 7}, info={"run": 12})
    everything = table.record_send("partner", version=1)
    ticket = table.associate("https://tickets.example/4711", keys=[{"k": 7}, {"k": 8}])
    table.associate("https://wiki.example/orders")
    record = table.associate("run:9", version=2)
    assert rows_of(table.to_arrow()) == rows
    assert kinds(table, key={"k": 7}, kind="SEND") == [("SEND", sent), ("SEND", everything)]
    assert kinds(table, key={"k": 8}, kind="SEND") == [("SEND", everything)]
    found = table.lineage(key={"k": 8}, kind="addinfo").events
    assert [event.outputs[0] for event in found] == ["https://tickets.example/4711", "https://wiki.example/orders"]
    assert [event.version for event in table.lineage(key={"k": 7}, kind="ADDINFO")][-1] == record
    (told,) = table.lineage(info={"run": 12}).events
    assert told.words == "one key of the changes after 1 up to 2 was sent to s3://bucket/export.csv"
    assert kinds(table, file="export.csv") == [("SEND", sent)]
    assert kinds(table, info="tickets.example") == [("ADDINFO", ticket)]
    assert table.lineage().to_dot().count("tickets.example") >= 1
    wrong: list[dict[str, Any]] = [{"since": 9}, {"version": 99}, {"keys": []}, {"keys": {"x": 1}}]
    for given in (*wrong, {"since": 2, "version": 1}):
        with pytest.raises(InputError):
            table.record_send("x", **given)
    with pytest.raises(InputError, match="must be a name, a path or a URL"):
        table.associate(" ")
    with pytest.raises(InputError, match="opened at version"):
        LakeTable.open(tmp_path / "t", version=1).record_send("x")


def test_a_search_by_kind_time_and_info(tmp_path: Path) -> None:
    table = source(tmp_path / "t")
    table.compact()
    table.alter(merger="commit-time")
    table.delete(pa.table({"k": [7]}), info={"reason": "gdpr request 12"})
    history = {entry.version: entry.timestamp_ms for entry in table.history()}
    events = table.lineage().events
    for limit in sorted(set(history.values())):
        moment = dt.datetime.fromtimestamp(limit / 1000, dt.UTC)
        late = [(e.kind, e.version) for e in events if history[e.version] >= limit]
        assert kinds(table, after=moment) == late
        assert kinds(table, before=moment.isoformat()) == [
            (e.kind, e.version) for e in events if history[e.version] < limit
        ]
    assert [kind for kind, _ in kinds(table, kind=["CHANGE", "JOIN"])] == ["JOIN", "CHANGE"]
    (change,) = table.lineage(kind="CHANGE").events
    assert change.words == "the merger is commit-time instead of event-time, with options {}"
    (gone,) = table.lineage(info="gdpr").events
    assert gone.words == "1 delete was committed"
    (own,) = table.lineage(key={"k": 7}, info={"reason": "gdpr request 12"}).events
    assert own.words.endswith("of this key: -D")
    note = f"from version {change.version} on the merger is commit-time; before, it was event-time"
    assert note in table.explain({"k": 7}, since=0).notes
    found = table.lineage(kind="SEND")
    assert len(found) == 0
    assert any("0 of 5 events" in note for note in found.notes)
    wrong: list[dict[str, Any]] = [{"kind": "SENT"}, {"kind": 7}, {"file": ""}, {"after": "yesterday"}, {"info": 3}]
    for given in wrong:
        with pytest.raises(InputError):
            table.lineage(**given)


def test_on_the_command_line_and_in_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = source(tmp_path / "t")
    path = str(tmp_path / "t")
    assert main(["record-send", path, "partner", "--since", "1", "--key", "k=7", "--info", "run=12"]) == 0
    assert main(["associate", path, "https://tickets.example/1", "--version", "2"]) == 0
    capsys.readouterr()
    assert main(["lineage", path, "--kind", "SEND", "--kind", "ADDINFO"]) == 0
    out = capsys.readouterr().out
    assert ("SEND" in out, "ADDINFO" in out, "CREATE" in out) == (True, True, False)
    assert main(["lineage", path, "k=8", "--info", "user=wms-service"]) == 0
    assert "CREATE" not in capsys.readouterr().out
    assert main(["lineage", path, "--file", "cancel-*.csv", "--before", "2199-01-01"]) == 0
    assert "by wms, number 41" in capsys.readouterr().out
    assert main(["lineage", path, "--after", "2199-01-01", "--json"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["lineage", path, "--kind", "SENT"]) == 2
    assert "did you mean 'SEND'" in capsys.readouterr().err
    assert main(["record-send", path, "x", "--info", "run"]) == 2
    page = report_html(LakeTable.open(path), key={"k": 7})
    assert page.count("sent to partner") >= 2, "of the table, and of the key"
    assert "https://tickets.example/1" in page
    assert "None: all rows can be read." in page
    assert rows_of(table.to_arrow()) == [(7, 2, "cancelled"), (8, 1, "paid")]


def test_records_that_a_writer_combined_are_counted(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    table.upsert(frame([(9, 1, "a"), (9, 2, "b"), (8, 1, "c")]))  # the first write merges its records
    table.upsert(frame([(1, 1, "home"), (1, 2, "cart"), (1, 3, "pay"), (2, 1, "x")]))
    table.upsert(frame([(1, 4, "sent")]))
    loaded = "1 record of version 1 is not written down: the first write of a table merges its records into rows"
    combined = (
        "2 records of version 2 are not written down: only the deciding records of each key were kept, as the laws of "
        "the merger at that time allow"
    )
    assert [note for note in table.what_if("first-row", since=0).notes if "written down" in note] == [loaded, combined]
    assert [note for note in table.what_if("first-row").notes if "written down" in note] == [combined]
    assert not [note for note in table.what_if(since=0).notes if "written down" in note], "they decide nothing"
    other = {"delete_when": {"column": "v", "values": ["pay"]}}
    assert combined in table.what_if(options=other, since=0).notes
    assert table.replay(tmp_path / "same").notes == ()
    assert set(table.replay(tmp_path / "first", merger="first-row").notes) == {loaded, combined}
    assert combined in table.replay(tmp_path / "part", where="v <> 'pay'").notes
    assert combined in table.replay(tmp_path / "changed", transform=lambda records: records).notes
    assert f"{combined}; some may be of this key" in table.explain({"k": 1}, since=0).notes
    assert not [note for note in table.explain({"k": 3}, since=0).notes if "written down" in note]
    table.compact_logs()
    table.vacuum(dry_run=False, retention=dt.timedelta(0), enforce_retention=False)
    assert any("3 records of versions 2 to 3 are not written down" in note for note in table.what_if("first-row").notes)
