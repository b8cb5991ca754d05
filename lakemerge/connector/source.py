"""The Python data source that carries requests of the jar, and gives the rows of metadata tables.

Spark runs it in a Python process of the driver. A request is an option, and its answer is in the schema: no other way
from a catalog in the JVM to Python exists in all of Spark's servers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import orjson
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from lakemerge.connector.details import detail_rows, detail_schema
from lakemerge.connector.requests import answer
from lakemerge.spark.transport.answers import answering
from lakemerge.spark_errors import carrying
from lakemerge.table.kept import kept_table
from mergers import Merger

__all__ = ["CatalogSource"]


class CatalogSource(DataSource):
    """Option ``request``: a request in JSON. With ``rows``, it asks for the rows of a metadata table."""

    mergers: ClassVar[Sequence[type[Merger]]] = ()
    """Merger classes in addition to the installed ones."""

    @classmethod
    def name(cls) -> str:
        return "lakemerge_catalog"

    @carrying()
    def schema(self) -> StructType:
        if "rows" in self.options:
            return StructType.fromJson(orjson.loads(detail_schema(self._request()["detail"])))
        return answering(answer(self.options["request"], self.mergers))

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Rows(self._request(), self.mergers)

    def _request(self) -> dict[str, Any]:
        found: dict[str, Any] = orjson.loads(self.options["request"])
        return found


class _Rows(DataSourceReader):
    """The rows of a metadata table, which one task makes."""

    def __init__(self, request: dict[str, Any], mergers: Sequence[type[Merger]]) -> None:
        self._request, self._mergers = request, mergers

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        with carrying():
            table = kept_table(self._request["path"], self._request["storage"], self._mergers).table
            yield from detail_rows(self._request["detail"], table)
