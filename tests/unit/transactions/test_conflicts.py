"""What transactions conflict with, what they do about it, and what they never do: twice the same, or harm to others."""

from __future__ import annotations

import datetime as dt
import errno
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakemerge import CommitConflictError, InputError, LakeTable, OutcomeUnknownError, UpsertResult
from lakemerge.commits.footprint import Footprint
from lakemerge.errors import TableReplacedError
from lakemerge.format.log_block import LogBlock
from lakemerge.storage import LocalStore
from lakemerge.storage.base import Put
from lakemerge.testing.faults import Call, Fail, Fault, FaultStore
from tests.unit.faults import Row, create, frame, listing, open_over, state_of

ROWS: list[Row] = [(1, 5, "a"), (2, 5, "b"), (3, 5, "a")]
NOW = dt.timedelta(0)
COUNTER = "k BIGINT, n BIGINT, note STRING"


def loaded(path: Path, **options: Any) -> LakeTable:
    table = create(path, **{"properties": {"lakemerge.maintenance": "off"}, **options})
    table.upsert(frame(ROWS))
    return table


def counter(path: Path, merger: str = "aggregate") -> LakeTable:
    """A table in which anything that is done twice is counted twice."""
    options = {"aggregates": {"n": "sum"}} if merger == "aggregate" else {}
    table = LakeTable.create(path, COUNTER, key=["k"], merger=merger, options=options, buckets=1)
    table.upsert(pa.table({"k": [1, 2], "n": [10, 20], "note": ["x", "y"]}))
    return table


def at_commit(path: Path, deed: Callable[[LakeTable], object]) -> Fault:
    """Somebody else does it right before the first attempt of the next commit."""
    return Fault(action=lambda call: deed(LakeTable.open(path)) and None, method="put_if_absent", path="_delta_log")


def at_records(path: Path, deed: Callable[[LakeTable], object]) -> Fault:
    """Somebody else does it when records are about to be written."""
    return Fault(action=lambda call: deed(LakeTable.open(path)) and None, method="publish", path="/log/")


def vacuumed(table: LakeTable) -> object:
    return table.vacuum(dry_run=False, retention=NOW, enforce_retention=False)


def with_files_gone(table: LakeTable) -> None:
    """The records of a commit are compacted, and their file is deleted."""
    table.upsert(frame([(1, 6, "c"), (9, 1, "a")]))
    table.compact()
    vacuumed(table)


def with_log_cleaned(table: LakeTable) -> None:
    """Commits are old, and only their checkpoint is left."""
    for number in range(6):
        table.upsert(frame([(50 + number, 1, "z")]))
    table.opened.handle.log.checkpoint(table.opened.view.snapshot)
    old = [file.path for file in table.opened.handle.store.list("_delta_log") if file.path.endswith(".json")]
    table.opened.handle.store.delete([path for path in old if int(Path(path).stem) < table.version])


CONFLICTS: Mapping[str, tuple[Callable[[LakeTable], object], list[Row]]] = {
    "upsert of the key": (lambda t: t.upsert(frame([(1, 6, "c")])), [(1, 6, "c"), (2, 5, "b"), (3, 5, "a!")]),
    "upsert of the key that loses": (
        lambda t: t.upsert(frame([(1, 1, "c")])), [(1, 5, "a!"), (2, 5, "b"), (3, 5, "a!")],
    ),
    "delete of the key": (
        lambda t: t.delete(pa.table({"k": [1], "o": [6]})), [(2, 5, "b"), (3, 5, "a!")],
    ),
    "transaction on the key": (lambda t: t.delete_where("k = 3"), [(1, 5, "a!"), (2, 5, "b")]),
    "restore": (lambda t: t.restore(version=t.version - 1), [(1, 5, "a!"), (3, 5, "a!")]),
    "another merger": (
        lambda t: (t.compact(), t.alter(merger="commit-time")), [(1, 5, "a!"), (2, 5, "b"), (3, 5, "a!")],
    ),
    "vacuum of what was read": (
        lambda t: (t.compact(), vacuumed(t)), [(1, 5, "a!"), (2, 5, "b"), (3, 5, "a!")],
    ),
    "files gone": (with_files_gone, [(1, 6, "c"), (2, 5, "b"), (3, 5, "a!"), (9, 1, "a!")]),
    "commits gone": (
        with_log_cleaned, [(1, 5, "a!"), (2, 5, "b"), (3, 5, "a!"), *((50 + n, 1, "z") for n in range(6))],
    ),
}  # fmt: skip
"""What somebody else does, and the rows after an update of what is ``a`` then."""


@pytest.mark.parametrize("name", CONFLICTS)
def test_after_a_conflict_all_of_it_runs_again(name: str, tmp_path: Path) -> None:
    deed, expected = CONFLICTS[name]
    path = tmp_path / "t"
    table = create(path, properties={"lakemerge.maintenance": "off"})
    table.upsert(frame([ROWS[0], ROWS[2]]))
    table.upsert(frame([ROWS[1]]))
    # Clean-up leaves commits alone that a writer may just have looked at.
    table, store = open_over(path, (at_records if name == "commits gone" else at_commit)(path, deed))
    result = table.update_where("v = 'a'", {"v": "concat(v, '!')"})
    assert state_of(path) == sorted(expected)
    own = [entry.info["txnId"] for entry in LakeTable.open(path).history(limit=1)]
    written = [call.path for call in store.calls if call.method == "publish" and "/log/" in call.path]
    assert len(written) == 2, "each attempt wrote its own records"
    assert [str(own[0]) in path for path in written] == [False, True], "under a transaction id of its own"
    assert written[0] not in listing(path)
    assert written[1] in listing(path)
    assert result.rows == sum(str(row[2]).endswith("!") for row in expected)
    assert LakeTable.check(path).ok


UNDISTURBING: Mapping[str, Callable[[LakeTable], object]] = {
    "upserts of other keys": lambda t: [t.upsert(frame([(k, 9, "a")])) for k in (2, 50)],
    "delete of another key": lambda t: t.delete(pa.table({"k": [2], "o": [9]})),
    "compaction": lambda t: t.compact(),
    "minor compaction": lambda t: t.compact(minor=True),
    "log compaction": lambda t: t.compact_logs(size_ratio=float("inf")),
    "rescale": lambda t: t.rescale(buckets=4),
    "rescale and upsert": lambda t: (t.rescale(buckets=4), t.upsert(frame([(k, 9, "z") for k in range(50, 90)]))),
    "column": lambda t: t.alter(add_columns="x INT"),
    "column with values": lambda t: t.upsert(
        frame([(50, 9, "z")]).append_column("x", pa.array([1])), merge_schema=True
    ),
    "savepoint": lambda t: t.savepoint("s"),
    "property": lambda t: t.alter(properties={"mine": "1"}),
    "expiry": lambda t: t.expire_tombstones(retention=NOW),
}


@pytest.mark.parametrize("name", UNDISTURBING)
def test_what_does_not_concern_its_keys_disturbs_nothing(name: str, tmp_path: Path) -> None:
    path = tmp_path / "t"
    loaded(path).upsert(frame([(3, 6, "a")]))
    table, store = open_over(path, at_commit(path, UNDISTURBING[name]))
    assert table.update_where("k = 1 OR k = 3", {"v": "concat(v, '!')"}).rows == 2
    rows = {row[0]: row[2] for row in state_of(path)}
    assert (rows[1], rows[3]) == ("a!", "a!")
    assert sum(call.method == "publish" for call in store.calls) == 1, "it ran once"


def test_a_first_load_of_an_empty_table_conflicts(tmp_path: Path) -> None:
    path = tmp_path / "t"
    create(path)
    table, _ = open_over(path, at_commit(path, lambda t: t.upsert(frame([(1, 5, "theirs")]))))
    merge = table.merge(frame([(1, 6, "mine"), (2, 6, "mine")]), "target.k = source.k")
    merge.whenMatchedUpdate(set={"v": "concat(target.v, source.v)"}).whenNotMatchedInsertAll().execute()
    assert state_of(path) == [(1, 5, "theirsmine"), (2, 6, "mine")]


def test_a_replaced_table_is_no_table_to_run_again_on(tmp_path: Path) -> None:
    path = tmp_path / "t"
    loaded(path)

    def replace(table: LakeTable) -> None:
        LakeTable.create(path, "k BIGINT, o BIGINT, v STRING", key=["k"], ordering=["o"], replace=True)

    table, _ = open_over(path, at_commit(path, replace))
    with pytest.raises(TableReplacedError):
        table.update_where("true", {"v": "'mine'"})
    assert state_of(path) == []


def test_a_transaction_lets_every_upsert_land_at_once(tmp_path: Path) -> None:
    path = tmp_path / "t"
    loaded(path)
    table, store = open_over(path, at_commit(path, lambda t: t.update_where("true", {"v": "'set'"})))
    table.upsert(frame([(1, 6, "up"), (2, 1, "old")]))
    assert state_of(path) == [(1, 6, "up"), (2, 5, "set"), (3, 5, "set")]
    assert sum(call.method == "publish" for call in store.calls) == 1


def test_only_commits_since_the_last_attempt_are_read(tmp_path: Path) -> None:
    """Twenty commits of other keys come one by one, before each attempt one. Each is looked at once."""
    path = tmp_path / "t"
    loaded(path)
    count = 0

    def write(call: Call) -> None:
        nonlocal count
        if count < 20:
            count += 1
            LakeTable.open(path).upsert(frame([(50 + count, 1, "z")]))

    fault = Fault(action=write, method="put_if_absent", path="_delta_log", lasting=True)
    table, store = open_over(path, fault)
    table.update_where("v = 'a'", {"v": "'set'"})
    assert count == 20
    commits = Counter(
        c.path for c in store.calls if c.method == "get" and c.path.endswith(".json") and "_delta" in c.path
    )
    theirs = {name: number for name, number in commits.items() if int(Path(name).stem) > 1}
    assert len(theirs) == 20
    assert set(theirs.values()) <= {2, 3}, "the log follows them, and conflicts are judged by them"
    logs = Counter(call.path for call in store.calls if "/log/" in call.path and call.method == "open_input")
    assert max(logs.values(), default=0) <= 1, "records of one commit are read once"


@pytest.mark.parametrize("answer", [Put.UNKNOWN, Put.EXISTS, TimeoutError(errno.ETIMEDOUT, "no answer")], ids=repr)
def test_a_lost_answer_of_the_commit_counts_once(answer: Put | Exception, tmp_path: Path) -> None:
    class Lossy(FaultStore):
        def put_if_absent(self, path: str, data: bytes) -> Put:
            assert super().put_if_absent(path, data) is Put.CREATED
            if isinstance(answer, Exception):
                raise answer
            return answer

    path = tmp_path / "t"
    counter(path)
    table, _ = open_over(path)
    store = Lossy(LocalStore(path))
    object.__setattr__(table.opened.handle, "store", store)
    table.opened.handle.log.store = store
    assert table.update_where("k = 1", {"n": "n + 1"}).version == 2
    assert state_of(path) == [(1, 11, "x"), (2, 20, "y")]


@pytest.mark.parametrize("lands", [True, False])
def test_an_unknown_outcome_is_not_tried_again(lands: bool, tmp_path: Path) -> None:
    path = tmp_path / "t"
    counter(path)
    gone = Fail(ConnectionError("gone"))
    commit = f"{2:020d}.json"
    table, store = open_over(
        path,
        Fault(action=gone, method="put_if_absent", path=commit, after=lands, lasting=not lands),
        Fault(action=gone, method="get", path=commit, lasting=True),
    )
    with pytest.raises(OutcomeUnknownError):
        table.update_where("k = 1", {"n": "n + 1"})
    assert state_of(path) == [(1, 11 if lands else 10, "x"), (2, 20, "y")]
    assert sum(call.method == "publish" for call in store.calls) == 1
    assert sum("/log/" in file for file in listing(path)) == 1, "its records may be needed"


def test_a_conflict_after_an_own_commit_of_unknown_outcome_is_found(tmp_path: Path) -> None:
    """The commit landed, its answer and the look at it failed once, and another writer went on: it is found there."""
    path = tmp_path / "t"
    counter(path)

    def lose(call: Call) -> None:
        LakeTable.open(path).upsert(pa.table({"k": [1], "n": [100], "note": ["z"]}))
        raise ConnectionError("gone")

    commit = f"{2:020d}.json"
    table, _ = open_over(path, Fault(action=lose, method="put_if_absent", path=commit, after=True))
    assert table.update_where("k = 1", {"n": "n + 1"}).version == 2
    assert state_of(path) == [(1, 111, "z"), (2, 20, "y")]


def test_txn_is_looked_up_before_anything_is_planned(tmp_path: Path) -> None:
    """Also where the update could not be planned any more."""
    path = tmp_path / "t"
    counter(path)
    table, store = open_over(path)
    assert table.update_where("k = 1", {"n": "n + 1"}, txn=("job", 3)).rows == 1
    before = listing(path)
    known = len(store.calls)
    deeds: tuple[Callable[[LakeTable], UpsertResult], ...] = (
        lambda t: t.update_where("no_such_column = 1", {"nor_this": 1}, txn=("job", 3)),
        lambda t: t.delete_where("true", txn=("job", 2)),
        lambda t: t.merge(pa.table({"k": [1]}), "target.k = source.k", txn=("job", 3)).whenMatchedDelete().execute(),
    )
    for deed in deeds:
        result = deed(table)
        assert (result.mode, result.rows, result.version) == ("repeated", 0, 2)
    assert not [call for call in store.calls[known:] if "_delta_log" not in call.path]
    assert listing(path) == before
    assert state_of(path) == [(1, 11, "x"), (2, 20, "y")]


def test_txn_is_looked_up_at_every_attempt(tmp_path: Path) -> None:
    """The same job runs twice at once: one of them lands, and the other one's records go."""
    path = tmp_path / "t"
    counter(path)

    def again(table: LakeTable) -> object:
        return table.update_where("k = 1", {"n": "n + 1"}, txn=("job", 3))

    table, _ = open_over(path, at_commit(path, again))
    assert again_mode(table) == "repeated"
    assert state_of(path) == [(1, 11, "x"), (2, 20, "y")]
    assert sum("/log/" in file for file in listing(path)) == 1


def again_mode(table: LakeTable) -> str:
    return table.update_where("k = 1", {"n": "n + 1"}, txn=("job", 3)).mode


def test_the_last_error_counts_and_names_keys(tmp_path: Path) -> None:
    path = tmp_path / "t"
    loaded(path)
    count = 0

    def change(call: Call) -> None:
        nonlocal count
        count += 1
        LakeTable.open(path).upsert(frame([(1, 100 + count, "a")]))

    table, _ = open_over(path, Fault(action=change, method="put_if_absent", path="_delta_log", lasting=True))
    with pytest.raises(
        CommitConflictError, match=r"2 times, and nothing was written: version 3 wrote 1 .*'k': 1"
    ) as found:
        table.update_where("v = 'a'", {"v": "'b'"}, retries=1)
    assert (found.value.attempts, found.value.keys) == (2, ({"k": 1},))
    assert count == 2
    assert sum("/log/" in file for file in listing(path)) == 2, "only those of the others are left"
    for wrong in (-1, True, 2.5):
        with pytest.raises(InputError, match="retries"):
            table.update_where("true", {"v": "'b'"}, retries=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("kept", [0, 2**20])
def test_keys_that_are_too_many_to_keep_are_read_again(
    kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two commits of others are compared with the same keys."""
    monkeypatch.setattr("lakemerge.commits.footprint._KEPT_BYTES", kept)
    read: list[int] = []
    keys_of = Footprint._keys_of

    def counting(self: Footprint, block: LogBlock) -> pa.Table:
        keys = keys_of(self, block)
        read.append(keys.num_rows)
        return keys

    monkeypatch.setattr(Footprint, "_keys_of", counting)
    path = tmp_path / "t"
    create(path, properties={"lakemerge.maintenance": "off"}).upsert(frame([(1, 5, "a"), (2, 5, "b"), (9, 5, "a")]))

    def others(table: LakeTable) -> None:
        for _ in range(2):
            table.upsert(frame([(2, 6, "c")]))

    table, _ = open_over(path, at_commit(path, others))
    table.update_where("v = 'a'", {"v": "'z'"})
    assert state_of(path) == [(1, 5, "z"), (2, 6, "c"), (9, 5, "z")]
    assert sorted(read) == ([1, 1, 2] if kept else [1, 1, 2, 2]), "its own two keys, once for each commit if not kept"
