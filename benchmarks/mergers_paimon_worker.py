"""Writes and reads Paimon tables, in an interpreter that has pypaimon and nothing of this project.

:mod:`benchmarks.mergers_paimon` starts it with the folder of the warehouse. Each line of standard input is a JSON
request. The answer is one line: ``{"seconds": ...}`` or ``{"error": ...}``. Rows are passed as Arrow IPC files.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from pypaimon import CatalogFactory, Schema

DATABASE = "d"


def main(warehouse: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # text that the library prints must not be taken for an answer
    catalog = CatalogFactory.create({"warehouse": warehouse})
    catalog.create_database(DATABASE, True)
    for line in sys.stdin:
        request = json.loads(line)
        act = ACTS[request.pop("act")]
        started = time.perf_counter()
        try:
            act(catalog, **request)
            answer: Mapping[str, object] = {"seconds": time.perf_counter() - started}
        except Exception as error:  # noqa: BLE001 - whatever it is, the asker is told
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def create(catalog: Any, table: str, schema: str, key: list[str], options: Mapping[str, str]) -> None:
    with pa.OSFile(schema) as file:
        fields = pa.ipc.open_stream(file).schema
    definition = Schema.from_pyarrow_schema(fields, primary_keys=key, options=dict(options))
    catalog.create_table(f"{DATABASE}.{table}", definition, False)


def write(catalog: Any, table: str, rows: str) -> None:
    """Write the rows in one commit."""
    with pa.OSFile(rows) as file:
        frame = pa.ipc.open_stream(file).read_all()
    builder = catalog.get_table(f"{DATABASE}.{table}").new_batch_write_builder()
    writer, commit = builder.new_write(), builder.new_commit()
    try:
        writer.write_arrow(frame)
        commit.commit(writer.prepare_commit())
    finally:
        writer.close()
        commit.close()


def read(catalog: Any, table: str, rows: str | None, all_files: bool) -> None:
    """Read the table. ``all_files``: also files that a batch read skips until a compaction; pypaimon cannot compact."""
    builder = catalog.get_table(f"{DATABASE}.{table}").new_read_builder()
    scan = builder.new_scan()
    found = builder.new_read().to_arrow((scan.plan_for_write() if all_files else scan.plan()).splits())
    if rows is not None:
        with pa.OSFile(rows, "w") as file, pa.ipc.new_stream(file, found.schema) as writer:
            writer.write_table(found)


ACTS: Mapping[str, Callable[..., None]] = {"create": create, "write": write, "read": read}


if __name__ == "__main__":
    main(sys.argv[1])
