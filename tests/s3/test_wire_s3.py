"""A commit over a network where anything may become of a request, and of its answer.

Every combination of what becomes of the first put of a commit, of the reads that look for it, and of the second put.
Three outcomes are allowed, and each is checked at once and again when requests that were under way have been carried
out: success, and the record is there once; ``OutcomeUnknownError``, and it is there once or not at all; any other
error, and it is not there and never will be. In each case the whole table can be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakemerge import LakeMergeError, LakeTable, OutcomeUnknownError
from lakemerge.delta import DeltaLog, Snapshot
from lakemerge.handle import Handle
from lakemerge.storage import S3Store
from lakemerge.storage.s3_client import S3Client
from lakemerge.testing.store_suite import StoreSuite
from mergers import default_registry
from tests.property.effort import some
from tests.s3.wire import Answer, Object, WireS3, wire_server

STATUSES = (400, 403, 404, 409, 412, 499, 500, 503)
ALL_WELL = Answer("now", "the truth")
PUTS = (
    ALL_WELL,
    *(Answer("now", status) for status in STATUSES),
    *(Answer("never", status) for status in STATUSES),
    *(Answer(does, "closed") for does in ("now", "never", "afterwards")),
)
GETS = (ALL_WELL, *(Answer("now", status) for status in (400, 403, 404, 499, 503)), Answer("now", "closed"))
SECOND_PUTS = (
    Answer("now", "closed"),
    Answer("never", 403),
    Answer("now", 499),
    Answer("afterwards", "closed"),
    Answer("now", 403),
    Answer("never", 409),
    Answer("never", "closed"),
    Answer("never", 412),
    Answer("now", 503),
    ALL_WELL,
)
URL = "s3://bucket/t"
PROPERTIES = {"lakemerge.maintenance": "off"}


@pytest.fixture(scope="module")
def wire() -> Iterator[WireS3]:
    with wire_server() as running:
        yield running


@pytest.fixture
def stage(wire: WireS3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stage:
    return Stage.of(wire, monkeypatch, tmp_path)


@pytest.mark.long
class TestWireS3(StoreSuite):
    """The server is a store: what scripts do not change is right."""

    @pytest.fixture
    def store(self, wire: WireS3) -> S3Store:
        wire.begin({}, [], [])
        return S3Store(URL, wire.options)

    def test_the_race(self, store: S3Store) -> None:  # type: ignore[override]
        """Threads of one server in Python race for long; a short race is enough for a server with one lock."""
        outcomes = [store.put_if_absent("file", bytes([number])) for number in range(3)]
        assert [outcome.value for outcome in outcomes] == ["created", "exists", "exists"]


def options(wire: WireS3, read_timeout: float = 60) -> dict[str, object]:
    """Nobody below our own loop tries again, so that a combination is what it says."""
    config = {"read_timeout": read_timeout, "retries": {"total_max_attempts": 1}}
    return {**wire.options, "config_kwargs": config}


@dataclass
class Stage:
    """A table with one record, and a writer of a second one."""

    wire: WireS3
    handle: Handle
    snapshot: Snapshot
    folder: Path
    objects: dict[str, Object]
    tries: list[str]
    """The commit puts that the client was asked for."""

    @staticmethod
    def of(wire: WireS3, monkeypatch: pytest.MonkeyPatch, folder: Path, **more: Any) -> Stage:
        monkeypatch.setattr("s3fs.core.S3FileSystem.retries", 1)
        wire.begin({}, [], [])
        table = LakeTable.create(
            URL, "id BIGINT, v STRING", key=["id"], buckets=1, properties=PROPERTIES, storage_options=wire.options
        )
        table.upsert(row(1))
        store = S3Store(URL, options(wire, **more))
        handle = Handle(store, DeltaLog(store, sleep=lambda _: None), default_registry(), table.opened.handle.settings)
        store.put_if_absent("warm", b"")  # the endpoint is tried out once
        tries: list[str] = []
        really = S3Client.put_if_absent

        def counted(client: S3Client, key: str, *given: Any, **named: Any) -> Any:
            tries.append(key)
            return really(client, key, *given, **named)

        monkeypatch.setattr(S3Client, "put_if_absent", counted)
        return Stage(wire, handle, table.opened.view.snapshot, folder, dict(wire.objects), tries)

    def play(self, first: Answer, looks: Answer, second: Answer) -> tuple[list[str], bool]:
        """Play a combination. Returns what is wrong, and whether the second put was reached."""
        wire = self.wire
        wire.given_up.clear()
        wire.begin(self.objects, [first, second], [looks])
        self.tries.clear()
        table = LakeTable(self.handle, self.snapshot, pinned=False, spark=None)
        told = "success"
        try:
            table.upsert(row(2))
        except OutcomeUnknownError:
            told = "unknown"
        except LakeMergeError as error:
            told = f"refused ({error.code})"
        asked, sent = sum("/_delta_log/" in key for key in self.tries), wire.put_count
        found = [self.records()]
        wire.given_up.set()
        if wire.deliver():
            found.append(self.records())
        allowed = {"success": {1}, "unknown": {0, 1}}.get(told, {0})
        about = f"first put {first}; looks {looks}; second put {second}: {told}, {sent} PUTs"
        wrong = [
            f"{about}; {'at once' if not after else 'afterwards'} the record is there: {count}"
            for after, count in enumerate(found)
            if count not in allowed
        ]
        if sent != asked:
            wrong.append(f"{about}, for {asked} that the client was asked for")
        return wrong, sent > 1

    def records(self) -> int | str:
        """How often the record is there; or why the table cannot be read. A copy of the objects is read, so that
        no answer comes between."""
        here = self.folder / str(len(list(self.folder.iterdir())))
        for name, there in self.wire.objects.items():
            path = here / name.removeprefix("bucket/t/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(there.data)
        try:
            ids = LakeTable.open(here).to_arrow()["id"].to_pylist()
        except (LakeMergeError, OSError) as error:
            return repr(error)
        return ids.count(2) if ids.count(1) == 1 else f"the ids are {ids}"


def row(number: int) -> pa.Table:
    return pa.table({"id": [number], "v": [f"v{number}"]})


def played(stage: Stage, pairs: Sequence[tuple[Answer, Answer]], seconds: Sequence[Answer], one_in: int) -> list[str]:
    """Play each first put and each way to look, with one in so many of the second puts if there is one. All pairs of a
    look and a second put are played."""
    wrong = []
    for number, (first, looks) in enumerate(pairs):
        for second in seconds[number % one_in :: one_in]:
            problems, reached = stage.play(first, looks, second)
            wrong += problems
            if not reached:
                break  # the others would be the same
    return wrong


def told(wrong: list[str]) -> str:
    return f"{len(wrong)} combinations:\n" + "\n".join(islice(wrong, 12))


def test_what_becomes_of_one_put(stage: Stage) -> None:
    wrong = played(stage, [(first, ALL_WELL) for first in PUTS], [ALL_WELL], 1)
    assert not wrong, told(wrong)


def test_two_puts_and_a_look_between(stage: Stage) -> None:
    wrong = played(stage, [*product(PUTS, GETS)][::11], SECOND_PUTS, 5)
    assert not wrong, told(wrong)


@pytest.mark.long
def test_every_first_put_and_look(stage: Stage) -> None:
    wrong = played(stage, [*product(PUTS, GETS)], SECOND_PUTS, 5)
    assert not wrong, told(wrong)


LATE = (Answer("now", "late"), Answer("never", "late"), Answer("afterwards", "late"))


@pytest.mark.parametrize("first", some(LATE), ids=str)
def test_answers_that_come_when_the_client_waits_no_more(
    first: Answer, wire: WireS3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stage = Stage.of(wire, monkeypatch, tmp_path, read_timeout=1)
    seconds = some((Answer("never", 403), Answer("now", 499), *LATE))
    wrong = played(stage, [(first, ALL_WELL), (first, Answer("now", 403))], seconds, 1)
    assert not wrong, told(wrong)


def test_a_server_that_carries_nothing_out_at_first_is_asked_again(stage: Stage) -> None:
    """The record is there by the third put alone."""
    wrong, reached = stage.play(Answer("never", 503), ALL_WELL, Answer("never", 500))
    assert (wrong, reached, stage.wire.put_count) == ([], True, 3)
    assert stage.records() == 1
