"""Truncates: events that delete all rows before their place in the sequence.

The place of the last truncate is kept as a table property, so an older event that comes later stays out. An event with
the same sequence as the truncate stays in.
"""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.errors import InputError
from lakemerge.table.table import LakeTable
from mergers.type_names import type_name

__all__ = ["TRUNCATED_PROPERTY", "apply_truncate", "last_place", "literal", "truncated_below"]

TRUNCATED_PROPERTY = "lakemerge.flow.truncated"


def truncated_below(table: LakeTable, column: str) -> str | None:
    """The SQL condition for events that a truncate removes; ``None`` if there was no truncate."""
    text = table.opened.view.snapshot.metadata.configuration.get(TRUNCATED_PROPERTY)
    return None if text is None else f"{_quoted(column)} < {literal(_decoded(orjson.loads(text)))}"


def apply_truncate(table: LakeTable, column: str, at: Any) -> None:
    """Delete the rows below ``at``. Repeated, it changes nothing."""
    text = table.opened.view.snapshot.metadata.configuration.get(TRUNCATED_PROPERTY)
    if text is None or _decoded(orjson.loads(text)) < at:
        table.alter(properties={TRUNCATED_PROPERTY: orjson.dumps(_encoded(at)).decode()})
    condition = f"{_quoted(column)} < {literal(at)}"
    if table.to_arrow(columns=[column], filter=condition).num_rows:
        table.delete_where(condition)


def _quoted(column: str) -> str:
    return "`" + column.replace("`", "``") + "`"


def last_place(places: pa.ChunkedArray) -> Any:
    """The greatest of some places in the sequence, in the table's type; ``None`` if there is none. A time has a zone if
    its column has one, whatever the zones of the process and of the session are. Raises :class:`InputError`."""
    found = pc.max(places) if _has_greatest(places.type) else pa.scalar(None)
    if not found.is_valid:
        if places.null_count < len(places):
            raise _unusable(type_name(places.type))
        return None
    try:
        return found.as_py()
    except (ValueError, OverflowError):
        raise InputError(
            f"a truncate at {found.cast(pa.string()).as_py()} is beyond the year 9999, which no flow truncates at"
        ) from None


def _has_greatest(kind: pa.DataType) -> bool:
    return not (pa.types.is_nested(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _unusable(what: str) -> InputError:
    return InputError(f"truncates need a sequence of integers, decimals, dates, timestamps or text, not {what}")


def literal(value: Any) -> str:
    """A value of a sequence column as SQL."""
    if isinstance(value, dt.datetime):
        zone = "TIMESTAMP" if value.tzinfo is not None else "TIMESTAMP_NTZ"
        return f"{zone} '{value.isoformat(sep=' ')}'"
    if isinstance(value, dt.date):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    if isinstance(value, bool) or not isinstance(value, int | decimal.Decimal):
        raise _unusable(repr(value))
    return format(value, "f") if isinstance(value, decimal.Decimal) else str(value)


def _encoded(value: Any) -> list[str]:
    literal(value)  # raises if the type is not supported
    if isinstance(value, dt.datetime):
        return ["datetime", value.isoformat()]
    if isinstance(value, dt.date):
        return ["date", value.isoformat()]
    return ["text", value] if isinstance(value, str) else ["number", literal(value)]


def _decoded(stored: list[str]) -> Any:
    kind, text = stored
    match kind:
        case "datetime":
            return dt.datetime.fromisoformat(text)
        case "date":
            return dt.date.fromisoformat(text)
        case "text":
            return text
        case _:
            return decimal.Decimal(text)
