"""pypaimon's tables, from a process of its own.

pypaimon needs older versions of pyarrow, fsspec and polars than this project does, so it is installed in an environment
of its own: the folder ``paimon`` in the one that runs this (``make paimon``). Rows are passed as Arrow IPC streams.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from benchmarks.cases.paimon_worker import received, sent
from benchmarks.elsewhere import Elsewhere

__all__ = ["PYTHON", "Paimon"]

PYTHON = Path(sys.prefix) / "paimon" / "bin" / "python"
"""The interpreter that has pypaimon, where it is installed."""


class Paimon(Elsewhere):
    """A warehouse in a folder, with a process that writes and reads its tables. A context manager.

    Raises :class:`FileNotFoundError` where pypaimon is not installed.
    """

    def __init__(self, folder: Path) -> None:
        if not PYTHON.exists():
            raise FileNotFoundError(f"there is no {PYTHON}: `make paimon` installs pypaimon")
        folder.mkdir(parents=True, exist_ok=True)
        self._numbers = itertools.count()
        super().__init__("benchmarks.cases.paimon_worker:Warehouse", folder, python=PYTHON)

    def create(self, schema: pa.Schema, *, key: Sequence[str], options: Mapping[str, str]) -> str:
        """A new table of one bucket; its name. Columns of the key must not be nullable."""
        name = f"t{next(self._numbers)}"
        self.ask("create", name, sent(schema.empty_table()), list(key), {"bucket": "1", **options})
        return name

    def write(self, table: str, rows: pa.Table) -> None:
        """Commit rows, which hold every column."""
        self.ask("write", table, sent(rows))

    def read(self, table: str, *, all_files: bool) -> pa.Table:
        """The merged rows. ``all_files``: also those that pypaimon leaves to a compaction by Java."""
        return received(self.ask("read", table, all_files=all_files, give=True))

    def read_only(self, table: str) -> None:
        """Read the merged rows, and leave them there."""
        self.ask("read", table, all_files=False, give=False)
