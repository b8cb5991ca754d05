"""Errors of this library that come out of Spark's Python processes as text, and are made again from it."""

from __future__ import annotations

import datetime as dt
import traceback
from decimal import Decimal

import pytest

import lakemerge.errors
from lakemerge import FrameError, LakeMergeError, MergeOverflowError, StoreError, unwrap_error, unwrap_errors
from lakemerge.spark_errors import carrying

errors = pytest.importorskip("pyspark.errors", reason="the exceptions are Spark's")

ALL = [getattr(lakemerge.errors, name) for name in lakemerge.errors.__all__]
FACTS = {
    "key": {"id": 1, "day": dt.date(2026, 2, 28), "part": b"\x00\xff"},
    "column": "n\nfacts: {",
    "total": Decimal("12.30"),
    "at": dt.datetime(2026, 2, 28, 12, 30, 1, 5, tzinfo=dt.UTC),
    "time": dt.time(1, 2, 3),
    "problems": ("ä", ("b", 2.5)),
    "none": None,
    "flag": True,
}


def told(error: LakeMergeError) -> str:
    """What a worker of Spark sends to the driver: ``pyspark.util.handle_worker_exception``."""
    try:
        with carrying():
            raise error
    except LakeMergeError:
        return traceback.format_exc()


def sparks(text: str) -> Exception:
    return errors.PythonException(f"An exception was thrown from the Python worker:\n{text} SQLSTATE: 38000")


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("facts", [{}, FACTS], ids=["no facts", "facts"])
def test_an_error_comes_back_whole(kind: type[LakeMergeError], facts: dict[str, object]) -> None:
    found = unwrap_error(sparks(told(kind("column 'n': mend it", **facts))))
    assert found is not None
    assert type(found) is kind
    assert found.message == "column 'n': mend it"
    assert found.facts == facts


@pytest.mark.parametrize("facts", [{}, {"column": "n"}], ids=["no facts", "a fact"])
def test_a_text_of_several_lines(facts: dict[str, object]) -> None:
    found = unwrap_error(sparks(told(FrameError("first\nsecond\n\nlast", **facts))))
    assert found is not None
    assert (found.message, found.facts) == ("first\nsecond\n\nlast", facts)


def test_what_is_no_json_is_its_text() -> None:
    found = unwrap_error(sparks(told(FrameError("odd", value=object))))
    assert found is not None
    assert found.value == "<class 'object'>"


def test_without_a_note_the_first_line_is_the_text() -> None:
    """So an error is found that a user's own function raised, too."""
    found = unwrap_error(sparks("Traceback:\nlakemerge.errors.FrameError: [frame] a\n\tat org.apache.spark.Task\n"))
    assert found is not None
    assert (type(found), found.message, found.facts) == (FrameError, "a", {})


def test_the_error_that_came_out_counts_and_not_its_cause() -> None:
    try:
        with carrying():
            try:
                raise StoreError("the cause", url="u")
            except StoreError as error:
                raise FrameError("what came out", column="c") from error
    except FrameError:
        text = traceback.format_exc()
    found = unwrap_error(sparks(text))
    assert found is not None
    assert (type(found), found.message, found.facts) == (FrameError, "what came out", {"column": "c"})


@pytest.mark.parametrize(
    "error",
    [
        ValueError("mergers.errors.MergeOverflowError: [merge-overflow] not Spark's"),
        sparks("ValueError: [frame] of another kind"),
        sparks("lakemerge.errors.FrameError: [store] of another code"),
        sparks("Traceback (most recent call last):\nZeroDivisionError: division by zero\n"),
    ],
)
def test_other_errors_are_not_ours(error: Exception) -> None:
    assert unwrap_error(error) is None
    with pytest.raises(type(error)) as caught, unwrap_errors():
        raise error
    assert caught.value is error


def test_facts_that_somebody_wrote_into_a_text() -> None:
    """They are read as JSON and as nothing else."""
    for facts in ("{", "[1]", '{"a": {"$decimal": "x"}}', '{"a": {"$date": "1"}}', "null"):
        found = unwrap_error(sparks(f"mergers.errors.InputError: [input] a\n[input] facts: {facts}\n"))
        assert found is not None
        assert (found.message, found.facts) == ("a", {})


def test_ours_is_raised_from_sparks() -> None:
    error = sparks(told(MergeOverflowError("too much", column="n")))
    with pytest.raises(MergeOverflowError) as caught, unwrap_errors():
        raise error
    assert caught.value.column == "n"
    assert caught.value.__cause__ is error


def test_it_is_a_decorator_too_and_ours_passes_as_it_is() -> None:
    error = FrameError("plain")

    @unwrap_errors()
    def work() -> None:
        raise error

    with pytest.raises(FrameError) as caught:
        work()
    assert caught.value is error
    assert caught.value.__cause__ is None
    assert unwrap_error(error) is error
