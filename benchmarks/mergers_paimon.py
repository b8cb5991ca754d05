"""pypaimon's tables, from a process of its own.

pypaimon needs older versions of pyarrow, fsspec and polars than this project does, so it is installed in
an environment of its own: the folder ``paimon`` in the one that runs this (``make paimon``).
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

__all__ = ["PYTHON", "Paimon", "PaimonError"]

PYTHON = Path(sys.prefix) / "paimon" / "bin" / "python"
"""The interpreter that has pypaimon, where it is installed."""
_WORKER = Path(__file__).with_name("mergers_paimon_worker.py")


class PaimonError(Exception):
    """What pypaimon raised, as text."""


class Paimon:
    """A warehouse in a folder, with a process that writes and reads its tables. A context manager.

    Raises :class:`FileNotFoundError` where pypaimon is not installed.
    """

    def __init__(self, folder: Path) -> None:
        if not PYTHON.exists():
            raise FileNotFoundError(f"there is no {PYTHON}: `make paimon` installs pypaimon")
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._numbers = itertools.count()
        self._process = subprocess.Popen(
            [PYTHON, "-I", _WORKER, folder / "warehouse"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()

    def create(self, schema: pa.Schema, *, key: Sequence[str], options: Mapping[str, str]) -> str:
        """A new table of one bucket; its name. Columns of the key must not be nullable."""
        name = f"t{next(self._numbers)}"
        sent = self._sent(schema.empty_table())
        self._ask("create", table=name, schema=sent, key=list(key), options={"bucket": "1", **options})
        return name

    def write(self, table: str, rows: pa.Table) -> float:
        """Commit rows, which hold every column; the seconds it took."""
        return self._ask("write", table=table, rows=self._sent(rows))

    def read(self, table: str, *, all_files: bool) -> pa.Table:
        """The merged rows. ``all_files``: also those that pypaimon leaves to a compaction by Java."""
        path = self._path()
        self._ask("read", table=table, rows=path, all_files=all_files)
        with pa.OSFile(path) as file:
            return pa.ipc.open_stream(file).read_all()

    def seconds_to_read(self, table: str) -> float:
        return self._ask("read", table=table, rows=None, all_files=False)

    def _ask(self, act: str, **request: Any) -> float:
        sent, answers = self._process.stdin, self._process.stdout
        if sent is None or answers is None:
            raise PaimonError("pypaimon's process has no pipes")
        sent.write(json.dumps({"act": act, **request}) + "\n")
        sent.flush()
        line = answers.readline()
        if not line:
            raise PaimonError(f"pypaimon's process ended with {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise PaimonError(answer["error"])
        return float(answer["seconds"])

    def _sent(self, rows: pa.Table) -> str:
        path = self._path()
        with pa.OSFile(path, "w") as file, pa.ipc.new_stream(file, rows.schema) as writer:
            writer.write_table(rows)
        return path

    def _path(self) -> str:
        return str(self._folder / f"{next(self._numbers)}.arrow")
