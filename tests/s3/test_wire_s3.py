"""A commit over a network where anything may become of a request, and of its answer.

Every combination of what becomes of the first put of a commit, of the reads that look for it, and of the second put.
Three outcomes are allowed, and each is checked at once and again when requests that were under way have been carried
out: success, and the record is there once; ``OutcomeUnknownError``, and it is there once or not at all; any other
error, and it is not there and never will be. In each case the whole table can be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from lakemerge.storage import S3Store
from lakemerge.storage.s3_client import S3Client
from lakemerge.testing.store_suite import StoreSuite
from tests.property.effort import some
from tests.s3.stage import ALL_WELL, GETS, LATE, PUTS, SECOND_PUTS, Stage, played, told
from tests.s3.wire import Answer, WireS3, s3_wire_server

URL = "s3://bucket/t"


@pytest.fixture(scope="module")
def wire() -> Iterator[WireS3]:
    with s3_wire_server() as running:
        yield running


def staged(wire: WireS3, monkeypatch: pytest.MonkeyPatch, folder: Path, read_timeout: float = 60) -> Stage:
    """Nobody below our own loop tries again, so that a combination is what it says."""
    monkeypatch.setattr("s3fs.core.S3FileSystem.retries", 1)
    return Stage.of(wire, URL, S3Client, monkeypatch, folder, read_timeout)


@pytest.fixture
def stage(wire: WireS3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stage:
    return staged(wire, monkeypatch, tmp_path)


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


@pytest.mark.parametrize("first", some(LATE), ids=str)
def test_answers_that_come_when_the_client_waits_no_more(
    first: Answer, wire: WireS3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stage = staged(wire, monkeypatch, tmp_path, read_timeout=1)
    seconds = some((Answer("never", 403), Answer("now", 499), *LATE))
    wrong = played(stage, [(first, ALL_WELL), (first, Answer("now", 403))], seconds, 1)
    assert not wrong, told(wrong)


def test_a_server_that_carries_nothing_out_at_first_is_asked_again(stage: Stage) -> None:
    """The record is there by the third put alone."""
    wrong, reached = stage.play(Answer("never", 503), ALL_WELL, Answer("never", 500))
    assert (wrong, reached, stage.wire.put_count) == ([], True, 3)
    assert stage.records() == 1
