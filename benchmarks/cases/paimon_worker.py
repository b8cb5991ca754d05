"""Writes and reads Paimon tables, in an interpreter that has pypaimon: :mod:`benchmarks.cases.paimon` starts it."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

__all__ = ["Warehouse", "received", "sent"]

_DATABASE = "d"


def sent(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()


def received(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(data).read_all()


class Warehouse:
    """The tables of a folder."""

    def __init__(self, folder: str) -> None:
        from pypaimon import CatalogFactory

        self._catalog = CatalogFactory.create({"warehouse": f"{folder}/warehouse"})
        self._catalog.create_database(_DATABASE, True)

    def create(self, table: str, rows: bytes, key: list[str], options: Mapping[str, str]) -> None:
        from pypaimon import Schema

        definition = Schema.from_pyarrow_schema(received(rows).schema, primary_keys=key, options=dict(options))
        self._catalog.create_table(f"{_DATABASE}.{table}", definition, False)

    def write(self, table: str, rows: bytes) -> None:
        """Write the rows in one commit."""
        builder = self._catalog.get_table(f"{_DATABASE}.{table}").new_batch_write_builder()
        writer, commit = builder.new_write(), builder.new_commit()
        try:
            writer.write_arrow(received(rows))
            commit.commit(writer.prepare_commit())
        finally:
            writer.close()
            commit.close()

    def read(self, table: str, *, all_files: bool, give: bool) -> bytes | None:
        """``all_files``: also files that a batch read skips until a compaction, which pypaimon cannot do."""
        builder = self._catalog.get_table(f"{_DATABASE}.{table}").new_read_builder()
        scan = builder.new_scan()
        found = builder.new_read().to_arrow((scan.plan_for_write() if all_files else scan.plan()).splits())
        return sent(found) if give else None
