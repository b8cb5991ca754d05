"""What a caller's own code raises in the middle of a call leaves the call as it is. Nothing is committed, and no file
stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakemerge import LakeTable, Settings
from lakemerge.errors import InputError
from lakemerge.flows import auto_cdc
from lakemerge.ingest import Files
from lakemerge.merge_source import MergeConfig, MergeSource
from tests.unit.faults import create, frame, listing, state_of


class OwnError(Exception):
    """Of the caller."""


ERRORS: tuple[BaseException, ...] = (
    OwnError("mine"),
    ValueError("mine"),
    KeyError("mine"),
    TypeError("mine"),
    OSError("mine"),
    MemoryError("mine"),
    InputError("mine"),
    KeyboardInterrupt("mine"),
    SystemExit("mine"),
)
ROWS = [(number, 1, f"v{number}") for number in range(50)]


def reader(error: BaseException, batches: int) -> pa.RecordBatchReader:
    """A stream that fails after so many batches."""
    whole = frame(ROWS)

    def stream() -> Iterator[pa.RecordBatch]:
        for _ in range(batches):
            yield from whole.to_batches()
        raise error

    return pa.RecordBatchReader.from_batches(whole.schema, stream())


class Capsule:
    """A frame of another library."""

    def __init__(self, inner: pa.RecordBatchReader) -> None:
        self._inner = inner

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._inner.__arrow_c_stream__(requested_schema)


def raised(call: Callable[[], object], error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        call()
    assert "mine" in str(caught.value)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("batches", [0, 1, 20])
@pytest.mark.parametrize("loaded", [False, True], ids=["first load", "upsert"])
def test_a_stream_that_fails(error: BaseException, batches: int, loaded: bool, tmp_path: Path) -> None:
    path = tmp_path / "t"
    create(path, properties={"lakemerge.maintenance": "off"})
    table = LakeTable.open(path, settings=Settings(write_budget_bytes=4096))
    if loaded:
        table.upsert(frame([(1, 0, "old")]))
    before, version, rows = listing(path), table.version, state_of(path)
    raised(lambda: table.upsert(reader(error, batches)), error)
    raised(lambda: table.delete(reader(error, batches)), error)
    assert listing(path) == before
    assert LakeTable.open(path).version == version == table.version
    assert state_of(path) == rows
    table.upsert(frame(ROWS))
    assert len(state_of(path)) == len(ROWS)


@pytest.mark.parametrize("error", ERRORS[:3], ids=lambda error: type(error).__name__)
def test_other_callbacks(error: BaseException, tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = create(path, properties={"lakemerge.maintenance": "off"})
    for at in range(3):
        table.upsert(frame([(number, at, "x") for number in range(10)]))
    before = listing(path)

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    def failing() -> Iterator[str]:
        yield str(tmp_path)
        raise error

    def stopping() -> bool:
        raise error

    for call in (
        lambda: table.replay(tmp_path / "other", transform=fail),
        lambda: table.ingest("job", Files(fail, format="json")).run(),
        lambda: table.ingest("job", Files(failing(), format="json")).run(),
        lambda: table.alter(comments=Rude(error)),
        lambda: auto_cdc(source=reader(error, 2), target=str(tmp_path / "made"), keys=["k"], sequence_by="o"),
    ):
        raised(call, error)
        assert listing(path) == before
    assert not (tmp_path / "made").exists()
    raised(lambda: table.maintain(stop=stopping), error)
    assert len(state_of(path)) == 10


class Rude(dict[str, str]):
    """A mapping that fails when it is looked at."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self._error = error

    def __iter__(self) -> Iterator[str]:
        raise self._error


def test_a_capsule_of_another_library(tmp_path: Path) -> None:
    """C knows no exceptions of Python, so this one comes as an error of ours that has its text."""
    table = create(tmp_path / "t")
    before = listing(tmp_path / "t")
    with pytest.raises(Exception, match="mine"):
        table.upsert(Capsule(reader(OwnError("mine"), 2)))
    assert listing(tmp_path / "t") == before


def test_an_iterator_over_the_feed_that_is_left(tmp_path: Path) -> None:
    """A consumer stays where it was when its code fails."""
    table = create(tmp_path / "t")
    table.consumers.register("reader", version=0)
    table.upsert(frame(ROWS))

    def fail(batch: pa.RecordBatch) -> None:
        raise OwnError(batch.num_rows)

    with pytest.raises(OwnError):
        list(map(fail, table.follow("reader", None)))
    assert table.consumers.list()[0].version == 0


def test_a_merge_source_over_a_dataset_that_fails(tmp_path: Path) -> None:
    create(tmp_path / "t").upsert(frame(ROWS))
    source = MergeSource.create(tmp_path / "out", MergeConfig(datasets={"a": str(tmp_path / "t")}))
    before = listing(tmp_path / "out")
    for file in (tmp_path / "t" / "base").rglob("*.parquet"):
        file.unlink()
    with pytest.raises(Exception, match="missing"):
        source.run()
    assert listing(tmp_path / "out") == before
