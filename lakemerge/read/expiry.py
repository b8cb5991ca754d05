"""Applies tombstone expiries: which tombstones and log records of a file slice remain after them.

Source: docs/table-format.md, section 6. At an expiry (version E, horizon H) every tombstone of version
<= H becomes absent. All such tombstones are stored ones, since no log at or below H was live at E. A
record of a version <= E that lost against such a tombstone has lost for good, and is removed with it.
Records after E meet neither of them. The expiry does not concern a key whose tombstone did not survive until E.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.format.expiries import Expiry
from mergers import Frame, Merger, TableShape, fold
from mergers.contract import Bools
from mergers.kernel import VERSION_COLUMN
from mergers.keys import key_columns, locate

__all__ = ["expire"]


def expire(
    merger: Merger,
    shape: TableShape,
    expiries: Sequence[Expiry],
    *,
    tombstones: pa.Table,
    frames: Sequence[Frame],
    stored: pa.Schema,
) -> tuple[pa.Table, list[Frame]]:
    """The tombstones and records of a key range, without those that expiries make void.

    :param expiries: the expiries, ascending.
    :param tombstones: the tombstones, sorted by key. None of their keys has a stored row.
    :param frames: the records, in commit order.
    :param stored: the columns of stored rows that the merger needs.
    """
    left = list(frames)
    for expiry in expiries:
        void = _up_to(tombstones, expiry.horizon)
        if not void.num_rows:
            continue
        early = [_filtered(frame, _is_early(frame, expiry, void, shape)) for frame in left]
        if any(frame.rows.num_rows for frame in early):
            # The merger decides which tombstones still exist at the expiry.
            folded = fold(merger, shape, base=stored.empty_table(), tombstones=void, frames=early, columns=shape.key)
            void = _up_to(folded.tombstones, expiry.horizon)
        tombstones = tombstones.filter(pa.array(~_is_among(void, tombstones, shape)))
        left = [_filtered(frame, ~_is_early(frame, expiry, void, shape)) for frame in left]
    return tombstones, [frame for frame in left if frame.rows.num_rows]


def _up_to(tombstones: pa.Table, horizon: int) -> pa.Table:
    return tombstones.filter(pc.less_equal(tombstones.column(VERSION_COLUMN), horizon)).combine_chunks()


def _is_early(frame: Frame, expiry: Expiry, tombstones: pa.Table, shape: TableShape) -> Bools:
    """For each record, whether it was committed before the expiry and has a key of the tombstones."""
    return _is_among(tombstones, frame.rows, shape) & (np.asarray(frame.version) <= expiry.version)


def _is_among(keyed: pa.Table, rows: pa.Table, shape: TableShape) -> Bools:
    return locate(key_columns(keyed, shape.key), key_columns(rows, shape.key))[1]


def _filtered(frame: Frame, keep: Bools) -> Frame:
    kinds = None if frame.kinds is None else frame.kinds[keep]
    version = frame.version if isinstance(frame.version, int) else frame.version[keep]
    columns = frozenset(frame.rows.column_names) if frame.columns is None else frame.columns
    return Frame(frame.rows.filter(pa.array(keep)), kinds, version, columns)
