"""Files of merged rows: the steps of a merge are not their row groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemerge import Settings
from lakemerge.schema.names import ColumnNames
from lakemerge.storage.local import LocalStore
from lakemerge.write.parquet.rows import RowsFile

COLUMNS = 20
SCHEMA = pa.schema([("k", pa.int64()), *((f"v{number}", pa.string()) for number in range(COLUMNS))])
LENGTH = 100


def _file(path: Path, settings: Settings = Settings()) -> RowsFile:  # noqa: B008 - it is frozen
    return RowsFile(
        LocalStore(str(path)), "f.parquet", schema=SCHEMA, names=ColumnNames(), ordinal=7, settings=settings
    )


def _steps(rows: int, of: int) -> Iterator[pa.Table]:
    for start in range(0, rows, of):
        keys = range(start, start + of)
        values = [f"{key:0{LENGTH}}" for key in keys]
        yield pa.table([pa.array(keys), *([values] * COLUMNS)], schema=SCHEMA)


@pytest.mark.parametrize(
    ("settings", "groups"),
    [
        (Settings(merge_budget_bytes=64 << 20), 1),
        (Settings(merge_budget_bytes=64 << 20, row_group_rows=100), 10),
        # About 2,090 bytes a row: half the budget are 502 rows.
        (Settings(merge_budget_bytes=2 << 20), 2),
        # A column of a row group has at least 16 KiB, as far as twice the budget allows that: 165 rows.
        (Settings(merge_budget_bytes=256 << 10), 6),
        (Settings(merge_budget_bytes=1), 100),
    ],
)
def test_rows_wait_until_there_are_enough_for_a_row_group(tmp_path: Path, settings: Settings, groups: int) -> None:
    file = _file(tmp_path, settings)
    for step in _steps(1000, 10):
        file.add(step)
    footer = file.close()
    assert footer.num_row_groups == groups
    stored = pq.read_table(tmp_path / "f.parquet")
    assert stored.column("k").to_pylist() == list(range(1000))
    assert stored.column("v3").to_pylist() == [f"{key:0{LENGTH}}" for key in range(1000)]
    assert set(stored.column("_lm_file").to_pylist()) == {7}
    assert (file.rows, file.size_bytes) == (1000, (tmp_path / "f.parquet").stat().st_size)


def test_bounds_of_long_texts_are_those_of_all_rows(tmp_path: Path) -> None:
    """Parquet's footer has none of them."""
    file = _file(tmp_path)
    for letter in "bca":
        file.add(pa.table([pa.array([1]), *([[letter * 2000]] * COLUMNS)], schema=SCHEMA))
    file.close()
    assert file.texts["v3"] == ("a" * 2000, "c" * 2000)


def test_whether_a_file_is_full_is_told_by_what_is_written(tmp_path: Path) -> None:
    """A hundred rows of 2,090 bytes become far fewer bytes in the file."""
    file = _file(tmp_path)
    for step in _steps(100, 10):
        file.add(step)
    assert file.size_bytes == 0
    assert not file.reaches(10**6)  # not with all that waits
    assert file.size_bytes == 0
    assert not file.reaches(200_000)
    written = file.size_bytes
    assert 0 < written < 200_000
    assert file.reaches(written)
    file.abandon()
    assert not list(tmp_path.glob("*.parquet"))
