"""``history`` and ``history_df``: the rows of a target of type 2 through time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from lakemerge._internal.arguments import shown
from lakemerge.errors import InputError
from lakemerge.flows.derivation import derived, spelled
from lakemerge.flows.settings import HISTORY_PROPERTY, START, HistoryView
from lakemerge.table.table import LakeTable
from mergers.keys import key_columns, sort_order
from mergers.wording import argument

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["history", "history_df", "view_of"]


def history(target: LakeTable) -> pa.Table:
    """The rows of every key through time, as an Arrow table: the target's columns, ``__START_AT`` and ``__END_AT``,
    which is null in the row that is valid now. Sorted by key and time.

    :raises lakemerge.InputError: the table is no target of a flow of type 2.
    """
    view = view_of(target)
    events = target.to_arrow().combine_chunks()
    order = sort_order(key_columns(events, [spelled(events, name) for name in (*view.keys, START)]))
    return derived(events.take(pa.array(order)), view)


def history_df(target: LakeTable) -> DataFrame:
    """The same rows as :func:`history`, as a Spark DataFrame, in no particular order."""
    from lakemerge.flows.spark import spark_history

    return spark_history(target, view_of(target))


def view_of(target: LakeTable) -> HistoryView:
    """How the target's history is derived."""
    if not isinstance(target, LakeTable):
        raise InputError(f"{argument('target')} must be a LakeTable, not {shown(target)}")
    text = target.opened.view.snapshot.metadata.configuration.get(HISTORY_PROPERTY)
    if text is None:
        raise InputError(
            f"the table at {target.url} has no history: it is not a target of auto_cdc with stored_as_scd_type=2"
        )
    return HistoryView.of(text)
