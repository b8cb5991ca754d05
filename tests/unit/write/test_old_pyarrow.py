"""What stands in for things that older versions of pyarrow lack, by pretending that this one lacks them."""

from __future__ import annotations

import io
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemerge import FrameError, frames
from lakemerge.read.parquet.extremes import extremes

TEXTS = ["a", "long " * 20, None]
VIEWS = {
    "text": pa.array(TEXTS, pa.string_view()),
    "bytes": pa.array([b"a", None, b"c"], pa.binary_view()),
    "list": pa.array([TEXTS, None, []], pa.list_(pa.string_view())),
    "large list": pa.array([TEXTS, None, []], pa.large_list(pa.string_view())),
    "struct": pa.array([{"s": text} for text in TEXTS], pa.struct([("s", pa.string_view())])),
    "map": pa.array([[("k", text)] for text in TEXTS], pa.map_(pa.string(), pa.string_view())),
}


@pytest.fixture
def without_views(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "OLDEST_WITH_VIEWS", 10_000)


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.usefixtures("without_views")
def test_columns_of_views_are_cast(name: str) -> None:
    table = pa.table({"n": [1, 2, 3], "v": VIEWS[name]})
    for given in (table, table.to_reader(), table.to_batches()[0]):
        read = frames.given_frame(given).reader.read_all()
        assert "view" not in str(read.schema.field("v").type)
        assert read.column("v").to_pylist() == VIEWS[name].to_pylist()


@pytest.mark.usefixtures("without_views")
def test_frames_of_polars_come_without_views() -> None:
    data = {"s": TEXTS, "l": [["x"], None, []]}
    for given in (pl.DataFrame(data), pl.LazyFrame(data)):
        read = frames.given_frame(given).reader.read_all()
        assert "view" not in str(read.schema)
        assert read.to_pydict() == data
    kinds = pl.DataFrame({"c": ["x", "y", "x"]}).with_columns(pl.col("c").cast(pl.Categorical))
    assert frames.given_frame(kinds).reader.read_all().column("c").to_pylist() == ["x", "y", "x"]


@pytest.mark.usefixtures("without_views")
def test_dictionaries_of_views_and_views_of_lists_are_refused_by_name() -> None:
    kind = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["a", "b"], pa.string_view()))
    for refused in (kind, pa.array([["a"]], pa.list_view(pa.string()))):
        with pytest.raises(FrameError, match=r"column 'v' of the frame is .*cast it to plain .* 'pyarrow>="):
            frames.as_reader(pa.table({"v": refused}))


class Statistics:
    """Those of a pyarrow that converts no decimals."""

    def __init__(self, real: Any) -> None:
        self.logical_type, self.min_raw, self.max_raw = real.logical_type, real.min_raw, real.max_raw

    def _lacking(self) -> object:
        raise pa.ArrowNotImplementedError("Cannot extract statistics for type")

    min = max = property(_lacking)


@pytest.mark.parametrize(("digits", "scale"), [(9, 0), (9, 2), (18, 3), (18, 18)])
def test_bounds_of_decimals_that_are_stored_as_integers(digits: int, scale: int) -> None:
    values = [Decimal(-5).scaleb(-scale), Decimal(123).scaleb(-scale)]
    file = io.BytesIO()
    table = pa.table({"d": pa.array([*values, None], pa.decimal128(digits, scale))})
    pq.write_table(table, file, store_decimal_as_integer=True)
    real: Any = pq.ParquetFile(file).metadata.row_group(0).column(0).statistics
    assert extremes(Statistics(real)) == tuple(values)
