"""A commit to GCS and to Azure where anything may become of a request, and of its answer.

This is ``s3/test_wire_s3.py`` for their protocols: the combinations, and the three outcomes that are allowed, are the
same.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from tests.property.effort import some
from tests.s3.stage import ALL_WELL, GETS, LATE, PUTS, SECOND_PUTS, Stage, played, told
from tests.s3.wire import Answer, Wire
from tests.stores.servers import Cloud


def staged(cloud: Cloud, wire: Wire, monkeypatch: pytest.MonkeyPatch, folder: Path, read_timeout: float = 60) -> Stage:
    """No request is tried again but a commit, so that a combination is what it says."""
    monkeypatch.setattr(cloud.client, "tries", 1)
    return Stage.of(wire, f"{cloud.scheme}://bucket/t", cloud.client, monkeypatch, folder, read_timeout)


@pytest.fixture
def stage(cloud: Cloud, wire: Wire, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stage:
    return staged(cloud, wire, monkeypatch, tmp_path)


def test_what_becomes_of_one_put(stage: Stage) -> None:
    wrong = played(stage, [(first, ALL_WELL) for first in PUTS], [ALL_WELL], 1)
    assert not wrong, told(wrong)


def test_two_puts_and_a_look_between(stage: Stage) -> None:
    wrong = played(stage, [*product(PUTS, GETS)][::22], SECOND_PUTS, 5)
    assert not wrong, told(wrong)


@pytest.mark.long
def test_every_first_put_and_look(stage: Stage) -> None:
    wrong = played(stage, [*product(PUTS, GETS)], SECOND_PUTS, 5)
    assert not wrong, told(wrong)


@pytest.mark.parametrize("first", some(LATE), ids=str)
def test_answers_that_come_when_the_client_waits_no_more(
    first: Answer, cloud: Cloud, wire: Wire, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stage = staged(cloud, wire, monkeypatch, tmp_path, read_timeout=1)
    wrong = played(stage, [(first, ALL_WELL)], some((Answer("never", 403), Answer("now", 499), *LATE)), 1)
    assert not wrong, told(wrong)


def test_a_server_that_carries_nothing_out_at_first_is_asked_again(stage: Stage) -> None:
    """The record is there by the third put alone."""
    wrong, reached = stage.play(Answer("never", 503), ALL_WELL, Answer("never", 500))
    assert (wrong, reached, stage.wire.put_count) == ([], True, 3)
    assert stage.records() == 1
