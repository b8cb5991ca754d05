"""The engines of the benchmark of object storage: what each does to open, write and read a table on S3."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from benchmarks.compare.engine import Place
from benchmarks.compare.on_arrow import expression
from benchmarks.compare.queries import Answer, Query, normalised
from benchmarks.compare.workload import Frame
from benchmarks.elsewhere import Elsewhere
from benchmarks.tpch import LINEITEM
from lakemerge import LakeTable

__all__ = ["UPDATED", "Credentials", "Deltalake", "Engine", "Iceberg", "Lake", "Plain", "Reader"]

Credentials = tuple[str, str]
"""Key and secret."""
UPDATED = "updated"


class Reader(ABC):
    """A table on S3 that is read. Each call begins with nothing in memory."""

    def __init__(self, name: str, bucket: str, endpoint: str, credentials: Credentials) -> None:
        self.name, self.url, self.endpoint = name, f"{bucket}/{name}", endpoint
        self.key, self.secret = credentials

    @property
    def options(self) -> dict[str, str]:
        """The settings that engines on object_store take."""
        return {
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
        }

    @abstractmethod
    def load(self, rows: Path) -> None:
        """Make the table, with the rows of a Parquet file."""

    @abstractmethod
    def answer(self, query: Query) -> Answer:
        """Open the table and answer a query."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what the engine holds."""


class Engine(Reader):
    """A table on S3 that is written to."""

    @abstractmethod
    def begin(self) -> None:
        """Open the table for what follows."""

    @abstractmethod
    def upsert(self, rows: Path) -> None:
        """Write the rows of a folder of Parquet files to the table that :meth:`begin` opened."""

    @abstractmethod
    def compact(self) -> None:
        """Open the table and compact all of it."""

    @abstractmethod
    def update(self, condition: str) -> None:
        """Open the table, and set the comment of the rows that meet a condition to :data:`UPDATED`."""

    @abstractmethod
    def delete(self, condition: str) -> None:
        """Open the table, and delete the rows that meet a condition."""

    def feed(self) -> Callable[[], pa.Table] | None:
        """Opens the table and takes the changes of the last commit. ``None`` if the engine has no such feed."""
        return None

    def again(self) -> Callable[[], object] | None:
        """A look at a table that is open already and has not changed."""
        return None


class _OnArrow(ABC):
    """Half of an engine whose rows come as Arrow tables. DuckDB computes the answers from them."""

    @abstractmethod
    def rows(self, query: Query) -> pa.Table:
        """What the query's condition and columns leave."""

    def answer(self, query: Query) -> Answer:
        found = self.rows(query)
        if not query.select:
            return normalised([[found.num_rows]])
        with duckdb.connect() as db:
            db.register("found", found)
            return normalised(db.execute(query.over("found")).fetchall())

    def close(self) -> None:
        return  # nothing is open


class Lake(_OnArrow, Engine):
    """LakeMerge with no maintenance but what a step asks for."""

    def _open(self) -> LakeTable:
        return LakeTable.open(self.url, storage_options=self.options)

    def load(self, rows: Path) -> None:
        table = LakeTable.create(
            self.url, LINEITEM.ddl, key=list(LINEITEM.key), ordering=[LINEITEM.ordering], buckets=4,
            storage_options=self.options, properties={"lakemerge.maintenance": "off"},
        )  # fmt: skip
        table.upsert(pq.read_table(rows))

    def begin(self) -> None:
        self._table = self._open()

    def upsert(self, rows: Path) -> None:
        self._table.upsert(pq.read_table(rows))

    def rows(self, query: Query) -> pa.Table:
        table = self._open()
        keys = {name: value for name, sign, value in query.bounds if sign == "="}
        if set(keys) == set(LINEITEM.key):
            row = table.get(keys, columns=list(query.columns))
            return pa.table({name: [] if row is None else [row[name]] for name in query.columns})
        return table.to_arrow(columns=list(query.columns) or None, filter=expression(query.bounds))

    def compact(self) -> None:
        self._open().compact()

    def update(self, condition: str) -> None:
        self._open().update_where(condition, {"l_comment": f"'{UPDATED}'"})

    def delete(self, condition: str) -> None:
        self._open().delete_where(condition)

    def feed(self) -> Callable[[], pa.Table]:
        def changes() -> pa.Table:
            table = self._open()
            return table.changes(table.version - 1, before_images=False).read_all()

        return changes

    def again(self) -> Callable[[], object]:
        table = self._open()
        return lambda: table.version


class Deltalake(_OnArrow, Engine):
    """Delta through deltalake. Its MERGE rewrites the files that it touches."""

    def _more(self) -> dict[str, str]:
        return {**self.options, "AWS_ALLOW_HTTP": "true", "aws_conditional_put": "etag"}

    def _open(self) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(self.url, storage_options=self._more())

    def load(self, rows: Path) -> None:
        from deltalake import write_deltalake

        table = pq.read_table(rows)
        write_deltalake(self.url, table, storage_options=self._more(), target_file_size=table.nbytes // 16)

    def begin(self) -> None:
        self._table = self._open()

    def upsert(self, rows: Path) -> None:
        keys = " AND ".join(f"t.{key} = s.{key}" for key in LINEITEM.key)
        newer = f"s.{LINEITEM.ordering} >= t.{LINEITEM.ordering}"
        merge = self._table.merge(pq.read_table(rows), keys, source_alias="s", target_alias="t")
        merge.when_matched_update_all(predicate=newer).when_not_matched_insert_all().execute()

    def rows(self, query: Query) -> pa.Table:
        dataset = self._open().to_pyarrow_dataset()
        return dataset.to_table(columns=list(query.columns) or None, filter=expression(query.bounds))

    def compact(self) -> None:
        self._open().optimize.compact()

    def update(self, condition: str) -> None:
        self._open().update(predicate=condition, updates={"l_comment": f"'{UPDATED}'"})

    def delete(self, condition: str) -> None:
        self._open().delete(condition)


class Iceberg(Engine):
    """Iceberg on Spark, in a process and an environment of its own: see :mod:`benchmarks.cases.s3_iceberg`."""

    def __init__(
        self, name: str, bucket: str, endpoint: str, credentials: Credentials, *, python: Path, scratch: Path
    ) -> None:
        super().__init__(name, bucket, endpoint, credentials)
        served = (self.url, self.endpoint, self.key, self.secret, scratch)
        self._worker = Elsewhere("benchmarks.cases.s3_iceberg:Table", *served, python=python)
        self._place = Place(Path(name), LINEITEM, 0)

    def load(self, rows: Path) -> None:
        self._place = replace(self._place, file_bytes=rows.stat().st_size // 4)
        self._worker.ask("load", self._place, rows)

    def begin(self) -> None:
        self._worker.ask("open", self._place)

    def upsert(self, rows: Path) -> None:
        self._worker.ask("upsert", self._place, Frame("", rows))

    def answer(self, query: Query) -> Answer:
        found: Answer = self._worker.ask("answer", self._place, query)
        return found

    def compact(self) -> None:
        self._worker.ask("compact", self._place)

    def update(self, condition: str) -> None:
        self._worker.ask("update_where", self._place, f"l_comment = '{UPDATED}'", condition)

    def delete(self, condition: str) -> None:
        self._worker.ask("delete_where", self._place, condition)

    def close(self) -> None:
        self._worker.close()


class Plain(_OnArrow, Reader):
    """Parquet files that pyarrow writes and reads. The floor of reads loads the rows as they are in the end."""

    @property
    def _files(self) -> pafs.S3FileSystem:
        return pafs.S3FileSystem(
            access_key=self.key, secret_key=self.secret, region="us-east-1",
            endpoint_override=self.endpoint.partition("://")[2], scheme="http", )  # fmt: skip

    @property
    def _folder(self) -> str:
        return self.url.removeprefix("s3://")

    def load(self, rows: Path) -> None:
        table = pq.read_table(rows)
        part = -(-table.num_rows // 4)
        for number in range(4):
            pq.write_table(table.slice(number * part, part), f"{self._folder}/{number}.parquet", filesystem=self._files)

    def rows(self, query: Query) -> pa.Table:
        dataset = ds.dataset(self._folder, filesystem=self._files, format="parquet")
        return dataset.to_table(columns=list(query.columns) or None, filter=expression(query.bounds))
