"""Decisions of one line in the log: each with the input that tells it from its opposite."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lakemerge import LakeTable
from lakemerge.delta import AddFile, AlreadyDone, Metadata, Protocol, RemoveFile, Transaction, Txn
from lakemerge.delta.commit import Prepared, _as_text, land
from lakemerge.delta.protocol import check_writable
from lakemerge.delta.snapshot import SnapshotBuilder
from lakemerge.delta.vectors import DeletionVector
from lakemerge.errors import (
    OutcomeUnknownError,
    StoreError,
    TableDamagedError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from lakemerge.storage import LocalStore, Put
from lakemerge.storage.base import NothingCreatedError
from tests.unit.faults import create, frame

DAY_MS = 86_400_000


class Answers(LocalStore):
    """Gives these answers to puts, one after the other, and the last one from then on."""

    def __init__(self, root: Path, *answers: Put | Exception | Callable[[], Put]) -> None:
        super().__init__(root)
        self._answers = list(answers)

    def put_if_absent(self, path: str, data: bytes) -> Put:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if answer is Put.CREATED:
            return super().put_if_absent(path, data)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, Put) else answer()


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    table = create(tmp_path / "t")
    snapshot = table.opened.view.snapshot
    data = (tmp_path / "t" / "_delta_log" / f"{0:020d}.json").read_bytes()
    return Prepared(1, data, snapshot)


def landed(root: Path, prepared: Prepared, *answers: Put | Exception) -> tuple[object, Transaction, list[float]]:
    transaction, slept = Transaction("another"), list[float]()
    try:
        outcome: object = land(Answers(root, *answers), prepared, transaction=transaction, sleep=slept.append)
    except (OutcomeUnknownError, StoreError) as error:
        outcome = type(error)
    return outcome, transaction, slept


def test_a_commit_that_was_sent_may_land_whatever_the_answer(tmp_path: Path, prepared: Prepared) -> None:
    outcome, transaction, slept = landed(tmp_path / "t", prepared, ConnectionResetError("no answer"))
    assert (outcome, transaction.may_land) == (OutcomeUnknownError, True)
    assert len(slept) > 1
    assert slept == sorted(slept)


def test_a_store_that_surely_created_nothing_is_believed_the_first_time_alone(
    tmp_path: Path, prepared: Prepared
) -> None:
    nothing = NothingCreatedError("no space")
    outcome, transaction, slept = landed(tmp_path / "t", prepared, nothing)
    assert (outcome, transaction.may_land, slept) == (StoreError, False, [])
    outcome, transaction, _ = landed(tmp_path / "t", prepared, ConnectionResetError("no answer"), nothing)
    assert (outcome, transaction.may_land) == (OutcomeUnknownError, True), "the first request may arrive yet"


def test_a_commit_of_another_is_lost(tmp_path: Path, prepared: Prepared) -> None:
    LakeTable.open(tmp_path / "t").upsert(frame([(1, 1, "x")]))
    outcome, transaction, _ = landed(tmp_path / "t", prepared, Put.EXISTS)
    assert (outcome, transaction.may_land) == (False, False)


def test_a_commit_that_was_created_is_ours(tmp_path: Path, prepared: Prepared) -> None:
    outcome, transaction, _ = landed(tmp_path / "t", prepared, Put.CREATED)
    assert (outcome, transaction.may_land) == (True, True)


def test_texts_of_commits() -> None:
    assert [_as_text("a"), _as_text(["a"]), _as_text(7), _as_text(None)] == ["a", '["a"]', "7", "null"]


def metadata(**configuration: str) -> Metadata:
    return Metadata("id", None, None, '{"type":"struct","fields":[]}', (), configuration, 0)


def test_who_cannot_read_does_not_write() -> None:
    unknown = Protocol(3, 7, frozenset({"inTheFuture"}), frozenset())
    with pytest.raises(UnsupportedFeatureError, match="inTheFuture"):
        check_writable(unknown, frozenset())
    with pytest.raises(UnsupportedFeatureError, match="reader version 4"):
        check_writable(Protocol(4, 7, frozenset(), frozenset()), frozenset())
    with pytest.raises(UnsupportedFeatureError, match="writer version 8"):
        check_writable(Protocol(1, 8, frozenset(), frozenset()), frozenset())
    check_writable(Protocol(3, 7, frozenset(), frozenset()), frozenset())


def test_column_mapping_of_an_unknown_mode_is_refused() -> None:
    mapped = Protocol(3, 7, frozenset({"columnMapping"}), frozenset({"columnMapping"}))
    understood = frozenset({"columnMapping"})
    check_writable(mapped, understood)
    for mode in ("none", "name", "id"):
        check_writable(mapped, understood, metadata=metadata(**{"delta.columnMapping.mode": mode}))
    with pytest.raises(UnsupportedFeatureError, match="columnMapping of mode 'place'"):
        check_writable(mapped, understood, metadata=metadata(**{"delta.columnMapping.mode": "place"}))


def test_a_feature_that_nothing_uses_does_not_hinder() -> None:
    listed = Protocol(1, 7, None, frozenset({"appendOnly"}))  # type: ignore[arg-type]
    listed = replace(listed, reader_features=frozenset())
    check_writable(listed, frozenset(), metadata=metadata())
    with pytest.raises(UnsupportedFeatureError, match="appendOnly"):
        check_writable(listed, frozenset(), metadata=metadata(**{"delta.appendOnly": "true"}))
    with pytest.raises(UnsupportedFeatureError, match="appendOnly"):
        check_writable(listed, frozenset())


def add(path: str, vector: DeletionVector | None = None) -> AddFile:
    return AddFile(path, {}, 1, 0, True, vector=vector)


def removed(path: str, at: int | None, vector: DeletionVector | None = None) -> RemoveFile:
    return RemoveFile(path, at, True, vector=vector)


def test_a_file_is_there_under_one_vector_at_a_time() -> None:
    one, other = vector("a"), vector("b")
    builder = SnapshotBuilder()
    builder.apply([add("f", one)])
    builder.apply([add("f", one)])
    with pytest.raises(TableDamagedError, match="two deletion vectors"):
        builder.apply([add("f", other)])
    builder.apply([removed("f", 1, other)])
    assert builder.files["f"].vector == one, "the removal is of an earlier vector"
    builder.apply([removed("f", 1, one)])
    assert not builder.files


def vector(name: str) -> DeletionVector:
    return DeletionVector(name * 20, 1, 10, 1)


def test_what_was_removed_is_known_until_it_is_there_again() -> None:
    builder = SnapshotBuilder()
    builder.apply([add("f"), add("g")])
    builder.apply([removed("f", 5), removed("g", None)])
    assert [*builder.tombstones] == ["f"], "one without a time has expired"
    builder.apply([add("f")])
    assert not builder.tombstones


def test_removals_are_forgotten_from_the_oldest_on() -> None:
    builder = SnapshotBuilder()
    builder.metadata = metadata(**{"delta.deletedFileRetentionDuration": "interval 1 days"})
    builder.apply([removed("old", 0), removed("edge", DAY_MS), removed("new", 2 * DAY_MS)])
    builder.forget(None)
    assert [*builder.tombstones] == ["new"]


def test_transactions_expire_by_both_clocks() -> None:
    builder = SnapshotBuilder()
    builder.metadata = metadata(**{"delta.setTransactionRetentionDuration": "interval 1 days"})
    assert builder.txns_until(10 * DAY_MS, lambda: 10 * DAY_MS) is None
    builder.apply([Txn("old", 1, 5 * DAY_MS), Txn("new", 1, 10 * DAY_MS), Txn("timeless", 1, None)])
    assert builder.txns_until(10 * DAY_MS, lambda: 10 * DAY_MS) == 9 * DAY_MS
    assert builder.txns_until(10 * DAY_MS, lambda: 3 * DAY_MS) is None, "this host's clock is ahead"

    def never() -> int:
        raise AssertionError("nothing seems to have expired, and the store was asked")

    assert builder.txns_until(5 * DAY_MS, never) is None
    builder.forget(5 * DAY_MS)
    assert sorted(builder.txns) == ["new", "timeless"]


def test_versions_by_time(tmp_path: Path) -> None:
    table = create(tmp_path / "t", properties={"delta.checkpointInterval": "2", "lakemerge.maintenance": "off"})
    for number in range(4):
        table.upsert(frame([(number, 1, "x")]))
    times = [dt.datetime.fromtimestamp(entry.timestamp_ms / 1000, dt.UTC) for entry in reversed(table.history())]
    for version, time in enumerate(times):
        assert LakeTable.open(tmp_path / "t", timestamp=time).version == version
    with pytest.raises(VersionNotFoundError):
        LakeTable.open(tmp_path / "t", timestamp=times[0].replace(year=2001))
    with pytest.raises(VersionNotFoundError):
        LakeTable.open(tmp_path / "t", timestamp=times[-1].replace(year=2999))


def test_nothing_to_do_is_no_commit(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    log = table.opened.handle.log
    outcome = log.commit(table.opened.view.snapshot, lambda _: AlreadyDone(0), operation="W", parameters={})
    assert outcome == AlreadyDone(0)
    assert LakeTable.open(tmp_path / "t").version == 0
