"""Consumers: positions without commits, what vacuum keeps for them, expiry; and ``follow``."""

from __future__ import annotations

import datetime as dt
import os
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from lakemerge import InputError, LakeTable, VersionNotFoundError
from lakemerge.testing.faults import Call, Fault
from tests.unit.faults import create, frame, open_over

DAY = 86_400


def age(path: Path, days: int, *, consumers: bool = False) -> None:
    """As if all commits had been made so many days ago; with ``consumers``, their last advances too."""
    for file in [
        *(path / "_delta_log").glob("*.json"),
        *((path / "_lakemerge/consumers").glob("*") if consumers else ()),
    ]:
        os.utime(file, (file.stat().st_mtime - days * DAY,) * 2)


def written(path: Path, commits: int = 4) -> LakeTable:
    """Versions 1 to ``commits``: key 1 at each of them; compacted in the end."""
    table = create(path)
    for number in range(1, commits + 1):
        table.upsert(frame([(1, number, f"v{number}")]))
    table.compact()
    return table


def compacted(path: Path) -> LakeTable:
    """Versions 1, 2, 5 and 8: key 1 at each of them, each but the first compacted at once, in two commits."""
    table = create(path)
    for number in range(1, 5):
        table.upsert(frame([(1, number, f"v{number}")]))
        table.compact()
    assert table.version == 10
    return table


def test_what_services_write_is_not_behind(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    table.consumers.register("billing", version=0)
    for number in (1, 2, 3):
        table.upsert(frame([(1, number, "v"), (2, number, "v")]))
    assert table.compact_logs(size_ratio=float("inf")).records == 4
    (known,) = table.consumers.list()
    assert (known.lag_versions, known.lag_rows) == (table.version, 6)


def told(table: LakeTable, consumer: str | None = None, **options: Any) -> list[tuple[Any, ...]]:
    batches = table.follow(consumer, poll=None, **options)
    rows = (row for batch in batches for row in batch.to_pylist())
    return [(row["_commit_version"], row["_row_kind"], row["v"]) for row in rows]


def test_a_position_is_no_commit(tmp_path: Path) -> None:
    table = written(tmp_path / "t")
    made = table.consumers.register("billing", version=2)
    before = table.version
    assert (made.name, made.version, made.lag_versions, made.lag_rows) == ("billing", 2, before - 2, 2)
    table.consumers.advance("billing", 4)
    (known,) = LakeTable.open(tmp_path / "t").consumers.list()
    assert (known.version, known.lag_versions, known.lag_rows) == (4, before - 4, 0)
    assert table.version == before
    with pytest.raises(InputError, match="cannot go back"):
        table.consumers.advance("billing", 3)
    with pytest.raises(InputError, match="must be a version up to"):
        table.consumers.advance("billing", 77)
    with pytest.raises(InputError, match="there is a consumer 'billing' already"):
        table.consumers.register("billing")
    table.consumers.drop("billing")
    assert list(table.consumers.list()) == []
    with pytest.raises(InputError, match="there is no consumer 'billing'"):
        table.consumers.advance("billing", 4)
    # One of the same name does not stand where the dropped one did.
    (tmp_path / "t/_lakemerge/consumers").mkdir(exist_ok=True)
    assert table.consumers.register("billing", version=1).version == 1


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"id": 5}', b'{"id": "x", "version": 3, "position": 0}'])
def test_a_damaged_or_foreign_position_holds_more_never_less(tmp_path: Path, text: bytes) -> None:
    table = written(tmp_path / "t")
    table.consumers.register("billing", version=1)
    table.consumers.advance("billing", 3)
    (tmp_path / "t/_lakemerge/consumers/billing").write_bytes(text)
    assert table.consumers.list()[0].version == 1


def test_vacuum_keeps_what_a_consumer_needs_and_no_more(tmp_path: Path) -> None:
    table = compacted(tmp_path / "t")
    table.consumers.register("slow", version=0)
    table.consumers.register("fast", version=7)
    table.consumers.advance("slow", 4)
    age(tmp_path / "t", 9)
    result = table.vacuum(dry_run=False)
    assert table.opened.view.state.oldest_version == result.oldest_version == 4
    assert result.files["base"] == 1, "what versions 1 and 2 alone need"
    with pytest.raises(VersionNotFoundError, match="a vacuum was faster"):
        told(table, since=2)
    assert told(table, "slow") == [
        (5, "-U", "v2"), (5, "+U", "v3"), (8, "-U", "v3"), (8, "+U", "v4"),
    ]  # fmt: skip
    assert told(table, "slow") == []
    age(tmp_path / "t", 9)
    table.vacuum(dry_run=False)
    assert table.opened.view.state.oldest_version == 7, "fast is the slower one now"
    assert told(table, "fast") == [(8, "-U", "v3"), (8, "+U", "v4")]


def test_a_consumer_that_stands_still_expires(tmp_path: Path) -> None:
    table = compacted(tmp_path / "t")
    table.consumers.register("gone", version=1, expires_after=dt.timedelta(days=2))
    table.consumers.register("alive", version=4, expires_after=dt.timedelta(days=30))
    age(tmp_path / "t", 9, consumers=True)
    table.vacuum(dry_run=False)
    assert [consumer.name for consumer in table.consumers.list()] == ["alive"]
    assert table.opened.view.state.oldest_version == 4
    with pytest.raises(InputError, match=r"there is no consumer 'gone'.*It was dropped, expired"):
        told(table, "gone")
    assert list(table.consumers.expire(older_than=dt.timedelta(days=1))) == ["alive"]


def test_a_consumer_that_is_registered_while_vacuum_looks(tmp_path: Path) -> None:
    path = tmp_path / "t"
    compacted(path)
    age(path, 9)

    def register(_: Call) -> None:
        LakeTable.open(path).consumers.register("late", version=1)

    table, store = open_over(path, Fault(action=register, method="put_if_absent", at=1))
    table.vacuum(dry_run=False)
    assert store.injected["put_if_absent"] == 1
    assert told(LakeTable.open(path), "late")[0] == (2, "-U", "v1")


def test_a_position_that_a_dropped_consumer_left_says_nothing_of_the_next_ones_age(tmp_path: Path) -> None:
    """Both processes were killed after their commit: the one that dropped the first consumer, and the one that
    registered the second."""
    path, position = tmp_path / "t", tmp_path / "t" / "_lakemerge" / "consumers" / "me"
    table = written(path)
    table.consumers.register("me", version=1, expires_after=dt.timedelta(days=90))
    left = position.read_bytes()
    age(path, 60, consumers=True)
    table.consumers.drop("me")
    table.consumers.register("me", version=2, expires_after=dt.timedelta(days=30))
    position.write_bytes(left)
    os.utime(position, (position.stat().st_mtime - 60 * DAY,) * 2)
    assert LakeTable.open(path).vacuum(dry_run=False).oldest_version <= 2
    assert [one.name for one in LakeTable.open(path).consumers.list()] == ["me"]
    assert len(told(LakeTable.open(path), "me")) > 0


def test_a_version_that_vacuum_took_cannot_be_registered(tmp_path: Path) -> None:
    table = compacted(tmp_path / "t")
    age(tmp_path / "t", 9)
    table.vacuum(dry_run=False)
    with pytest.raises(VersionNotFoundError):
        table.consumers.register("late", version=1)
    assert list(table.consumers.list()) == []


def test_restores_and_compactions_keep_consumers(tmp_path: Path) -> None:
    table = written(tmp_path / "t")
    table.consumers.register("billing", version=4)
    assert table.restore(version=2).version == 8
    table.compact()
    assert told(table, "billing") == [(8, "-U", "v4"), (8, "+U", "v2")]


def test_progress_is_made_when_the_next_batch_is_asked_for(tmp_path: Path) -> None:
    table = written(tmp_path / "t")
    table.consumers.register("billing", version=1)
    following = table.follow("billing", poll=None)
    first = next(following)
    assert first.column("_commit_version").to_pylist() == [2, 2]
    assert table.consumers.list()[0].version == 1, "the caller may still fail"
    next(following)
    assert table.consumers.list()[0].version == 2
    following.close()  # type: ignore[attr-defined]  # a generator
    # One that is killed gets its last batch again.
    assert [version for version, _, _ in told(table, "billing")] == [3, 3, 4, 4]


def test_present_rows_first(tmp_path: Path) -> None:
    table = written(tmp_path / "t")
    table.upsert(frame([(2, 1, "b")]))
    present = table.version
    following = table.follow(poll="1ms")
    first = next(following).drop_columns(["_commit_timestamp"]).to_pylist()
    assert [tuple(row.values()) for row in first] == [(1, 4, "v4", "+I", present), (2, 1, "b", "+I", present)]
    table.delete(frame([(2, 9)], ["k", "o"]))
    assert next(following).to_pylist()[0] | {"_commit_timestamp": None} == {
        "k": 2, "o": 1, "v": "b", "_row_kind": "-D", "_commit_version": present + 1, "_commit_timestamp": None,
    }  # fmt: skip
    table.consumers.register("copy", version=2, present_rows=True)
    assert told(table, "copy")[:2] == [(2, "+I", "v2"), (3, "-U", "v2")]


def test_batches_have_at_most_so_many_rows(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    table.upsert(frame([(k, 1, "a") for k in range(10)]))
    assert [batch.num_rows for batch in table.follow(poll=None, since=0, max_rows=4)] == [4, 4, 2]
    table.upsert(frame([(1, 2, "b")]))
    assert [row[1] for row in told(table, since=1, before_images=False)] == ["+U"]
    assert told(table, since=0, until=1)[0][0] == 1
    assert len(list(islice(table.follow(since=0, until=2), 99))) == 2


def test_refused(tmp_path: Path) -> None:
    table = written(tmp_path / "t")
    table.consumers.register("billing")
    given: list[dict[str, Any]] = [{"since": 1}, {"max_rows": 0}, {"until": -1}, {"poll": "soon"}]
    for arguments in given:
        with pytest.raises(InputError):
            table.follow("billing", **arguments)
    for name in ("", "a/b", "../x"):
        with pytest.raises(InputError, match="a consumer's name has"):
            table.consumers.register(name)


def test_an_empty_table_has_no_rows_to_begin_with(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    assert told(table) == []
    table.consumers.register("early", present_rows=True)
    assert told(table, "early") == []
    table.upsert(frame([(1, 1, "a")]))
    table.upsert(frame([(1, 0, "late")]))
    assert [kind for _, kind, _ in told(table, "early")] == ["+I"]
    assert table.consumers.list()[0].lag_versions == 0, "also of commits that changed nothing"


def test_a_vacuum_that_overtakes_a_follower_says_so(tmp_path: Path) -> None:
    table = compacted(tmp_path / "t")
    following = table.follow(since=0, poll=None)
    assert next(following).column("_commit_version").to_pylist() == [1]
    table.vacuum(dry_run=False, retention=dt.timedelta(0), enforce_retention=False)
    with pytest.raises(VersionNotFoundError, match=r"a vacuum was faster.*Start again from the present rows"):
        list(following)
