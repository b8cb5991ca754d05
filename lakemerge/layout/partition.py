"""Partition values as Delta serialises them, and back.

Source: Delta protocol, "Partition Value Serialization". An empty string and null are the same
there, so a table refuses empty strings in partition columns.
"""

from __future__ import annotations

import datetime as dt
import decimal

import pyarrow as pa

from lakemerge.errors import FrameError, TableDamagedError
from mergers.type_names import type_name

__all__ = ["is_partitionable", "parse_partition_value", "partition_value"]


def is_partitionable(kind: pa.DataType) -> bool:
    """Whether a type can be that of a partition column: integers, strings, booleans, dates, timestamps and decimals."""
    return (
        pa.types.is_integer(kind)
        or pa.types.is_string(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_decimal(kind)
    )


def partition_value(value: object) -> str:
    """One non-null value as text. Raises :class:`FrameError` for an empty string."""
    if value == "":
        raise FrameError("an empty string cannot be a partition value: Delta readers would take it for null")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dt.datetime):
        if value.tzinfo is not None:
            return value.astimezone(dt.UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
        return value.isoformat(sep=" ", timespec="microseconds")
    if isinstance(value, dt.date):
        return value.isoformat()
    return format(value, "f") if isinstance(value, decimal.Decimal) else str(value)


def parse_partition_value(text: str, kind: pa.DataType) -> object:
    """The typed value of a partition value written by :func:`partition_value`."""
    try:
        if pa.types.is_boolean(kind):
            return {"true": True, "false": False}[text]
        if pa.types.is_integer(kind):
            return int(text)
        if pa.types.is_decimal(kind):
            return decimal.Decimal(text)
        if pa.types.is_date(kind):
            return dt.date.fromisoformat(text)
        if pa.types.is_timestamp(kind):
            return dt.datetime.fromisoformat(text)
    except (ValueError, KeyError, decimal.DecimalException) as error:
        raise TableDamagedError(f"{text!r} is not a partition value of type {type_name(kind)}") from error
    return text
