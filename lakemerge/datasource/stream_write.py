"""Structured Streaming into a table: each micro-batch is one upsert, exactly once.

A micro-batch that Spark repeats has the number that it had before, and the table knows the last number of each query,
and what that batch was read from (:mod:`lakemerge.datasource.stream_batches`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from lakemerge.datasource.stream_batches import current_batch
from lakemerge.errors import InputError
from lakemerge.spark.sessions import jvm_session
from lakemerge.spark_errors import carrying
from mergers.wording import argument

if TYPE_CHECKING:
    from lakemerge.results.writes import UpsertResult
    from lakemerge.table.open_table import OpenTable

__all__ = ["BatchWriter", "start_stream"]

_MODES = ("append", "update", "complete")


class BatchWriter:
    """See :meth:`lakemerge.LakeTable.batch_writer`."""

    def __init__(
        self,
        table: OpenTable,
        upsert: Callable[..., UpsertResult],
        app: Any,
        *,
        kind_column: str | None,
        merge_schema: bool,
    ) -> None:
        """
        :param upsert: the method of the table that a user calls.
        """
        if app is not None and (not isinstance(app, str) or not app or app.startswith("lakemerge.")):
            raise InputError(
                f"{argument('app')} must be a text that does not begin with 'lakemerge.', which are the library's own, "
                f"not {app!r}"
            )
        self._table = table
        self._upsert = upsert
        self._app = app
        self._kind_column = kind_column
        self._merge_schema = merge_schema

    @carrying()
    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """
        :raises InputError: a later batch of this query or another one with its number is in the table already, or the
            query's id is not known.
        """
        given = current_batch(batch, batch_id, self._app)
        if given is None:
            raise InputError(
                f"the id of the streaming query cannot be read here; give batch_writer an {argument('app', '...')} "
                "that is unique to the query and as lasting as its checkpoint"
            )
        # A plain tuple is for users' own ids. These ids are the library's.
        txn = cast("tuple[str, int]", given.txn)
        result = self._upsert(batch, kind_column=self._kind_column, merge_schema=self._merge_schema, txn=txn)
        if result.mode == "repeated":
            given.check_repeated(self._table.view.snapshot)


def start_stream(
    frame: DataFrame,
    writer: Callable[[DataFrame, int], None],
    *,
    checkpoint: str,
    trigger: Mapping[str, Any],
    output_mode: str,
    query_name: str | None,
) -> StreamingQuery:
    """See :meth:`lakemerge.LakeTable.write_stream`."""
    if not frame.isStreaming:
        raise InputError(
            "the frame is no stream, and write_stream takes streams: make it with spark.readStream, or write it with "
            "table.upsert(frame)"
        )
    if not checkpoint:
        raise InputError(f"{argument('checkpoint')} must be the folder or URL of the query's checkpoint")
    if output_mode not in _MODES:
        raise InputError(f"{argument('output_mode')} must be one of {', '.join(_MODES)}, not {output_mode!r}")
    if jvm_session(frame.sparkSession) is None:
        raise InputError(
            "with Spark Connect a stream's function does not learn the query's id: use df.writeStream.foreachBatch("
            f"table.batch_writer({argument('app', '...')})), with an id of yours that is as lasting as the checkpoint"
        )
    writing: Any = frame.writeStream.foreachBatch(writer).outputMode(output_mode).trigger(**trigger)
    writing = writing.option("checkpointLocation", checkpoint)
    return cast("StreamingQuery", (writing if query_name is None else writing.queryName(query_name)).start())
