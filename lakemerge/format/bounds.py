"""Which columns have bounds in every file with statistics.

A reader may take the bounds that statistics lack for null bounds, and then skips rows. deltalake does so for all
columns of a file that has statistics. The table property ``delta.dataSkippingStatsColumns`` names the columns whose
bounds readers may use. Source: docs/table-format.md, section 2.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import pyarrow as pa

__all__ = ["SKIPPING_COLUMNS", "STATISTICS_COLUMNS", "bounded_columns", "skipping_property"]

STATISTICS_COLUMNS: Final = 32
"""Only so many columns, the first, have statistics."""
SKIPPING_COLUMNS: Final = "delta.dataSkippingStatsColumns"
_EXACT_DIGITS: Final = 15
"""Each decimal of so many digits is the nearest one to some double, and statistics hold doubles."""


def bounded_columns(schema: pa.Schema, partition_by: Collection[str]) -> list[str]:
    """The columns whose values, if there are some in a file, have bounds in its statistics."""
    return [
        field.name
        for field in list(schema)[:STATISTICS_COLUMNS]
        if field.name not in partition_by and _is_bounded(field.type)
    ]


def skipping_property(schema: pa.Schema, partition_by: Collection[str]) -> dict[str, str]:
    """The entry of ``metaData.configuration`` that names them."""
    names = bounded_columns(schema, partition_by)
    return {SKIPPING_COLUMNS: ",".join("`" + name.replace("`", "``") + "`" for name in names)}


def _is_bounded(kind: pa.DataType) -> bool:
    if pa.types.is_decimal(kind):
        return int(kind.precision) <= _EXACT_DIGITS
    return bool(
        pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind)
    )
