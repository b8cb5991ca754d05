"""The least and the greatest value that a Parquet footer tells of a column chunk."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["extremes"]


def extremes(bounds: pq.Statistics) -> tuple[Any, Any]:
    """Minimum and maximum, of statistics that have them.

    pyarrow before 23 does not convert decimals that are stored as integers.

    :raises OverflowError: Python has no such value. So does :class:`ValueError`, for text that is not UTF-8, too.
    """
    try:
        return bounds.min, bounds.max
    except pa.ArrowNotImplementedError:
        kind = json.loads(bounds.logical_type.to_json())
        if kind.get("Type") != "Decimal" or not isinstance(bounds.min_raw, int):
            raise
        least, greatest = Decimal(bounds.min_raw), Decimal(bounds.max_raw)
        return least.scaleb(-kind["scale"]), greatest.scaleb(-kind["scale"])
