"""Change events in their envelopes, as rows for the presets of change capture.

Source: Debezium documentation, "MySQL connector" and "PostgreSQL connector", sections on data change events and data
type mappings; AWS Database Migration Service user guide, "Using Amazon S3 as a target".
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from lakemerge.errors import FrameError, InputError
from lakemerge.format.config import TableConfig

__all__ = ["KIND", "OP", "Debezium", "dms_kinds"]

KIND: Final = "_lm_row_kind"
"""The kind column of frames that envelopes make. No column of a table has such a name."""
OP: Final = "Op"
"""The operation in files of DMS."""

dms_kinds: Final[Mapping[str, str]] = {"I": "+I", "U": "+U", "D": "-D"}

_KINDS: Final = {"c": "+I", "r": "+I", "u": "+U", "d": "-D"}
_PLACES: Final[Mapping[str, tuple[str, ...]]] = {"debezium-mysql": ("file", "pos"), "debezium-postgres": ("lsn",)}
"""Preset -> the fields of ``source`` that its ordering columns hold, in their order."""
_UNITS: Final = {"ms": 1_000, "us": 1, "ns": -1_000}
"""Microseconds in one of the unit; if negative, how many of the unit are one microsecond."""
_UNIT_OF_PRESET: Final = {"debezium-mysql": "ms", "debezium-postgres": "us"}
"""What the connectors write by default (``time.precision.mode=adaptive``), for events that do not say it."""
_NAMED_UNITS: Final = {
    "io.debezium.time.Timestamp": "ms",
    "org.apache.kafka.connect.data.Timestamp": "ms",
    "io.debezium.time.MicroTimestamp": "us",
    "io.debezium.time.NanoTimestamp": "ns",
}
_DATES: Final = ("io.debezium.time.Date", "org.apache.kafka.connect.data.Date")
_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class Debezium:
    """Turns a change event into a row, with its kind in :data:`KIND`; ``None`` if it changes no row. Picklable.

    Raises ``ValueError`` if the value is no change event, and :class:`FrameError` for a truncate.
    """

    types: Mapping[str, pa.DataType]
    """The types of the table's columns, by lower-case name."""
    ordering: Mapping[str, tuple[str, ...]]
    """Ordering column -> the place of its value in the envelope."""
    op_column: str | None
    timestamp_unit: str | None
    """The unit of times that are whole numbers, if the event does not say it; ``None``: such times are refused."""
    decimals_are_text: bool

    @staticmethod
    def of(config: TableConfig, options: Mapping[str, Any]) -> Debezium:
        """For a table. Raises :class:`InputError` for options that do not fit it."""
        unit = options.get("timestamp_unit", _UNIT_OF_PRESET.get(config.merger_name))
        decimals = options.get("decimals", "precise")
        places = _PLACES.get(config.merger_name, ())
        ordering = {name: ("source", place) for name, place in zip(config.ordering, places, strict=bool(places))}
        given = options.get("ordering", {})
        problems = []
        if unit not in (*_UNITS, None):
            problems.append(f"timestamp_unit must be one of {', '.join(_UNITS)}, not {unit!r}")
        if decimals not in ("precise", "string"):
            problems.append(f"decimals must be 'precise' or 'string', not {decimals!r}")
        if not isinstance(given, Mapping) or not all(isinstance(place, str) for place in given.values()):
            problems.append("ordering must map ordering columns to places such as 'source.lsn'")
        elif strange := sorted(set(given) - set(config.ordering)):
            problems.append(f"ordering names {strange}; the table's ordering columns are {list(config.ordering)}")
        else:
            ordering |= {name: tuple(place.split(".")) for name, place in given.items()}
        if problems:
            raise InputError("the options of the debezium envelope cannot be used: " + "; ".join(problems))
        op_column = config.merger_options.get("op_column")
        return Debezium(
            types={column.name.lower(): column.type for column in config.schema},
            ordering={name: ordering.get(name, ()) for name in config.ordering},
            op_column=op_column if isinstance(op_column, str) else None,
            timestamp_unit=unit,
            decimals_are_text=decimals == "string",
        )

    def __call__(self, value: Any) -> dict[str, Any] | None:
        schema: Any = None
        if isinstance(value, dict) and value.keys() == {"schema", "payload"}:
            schema, value = value["schema"], value["payload"]
        if value is None:
            return None  # a tombstone, for Kafka to forget the key
        if not isinstance(value, dict):
            raise ValueError("it is no change event of Debezium")
        op = value.get("op")
        if op == "m":
            return None  # a PostgreSQL message that concerns no row
        if op == "t":
            raise FrameError(
                "a truncate is not taken: it does not say which rows it removed. Delete them (delete_where), take the "
                "event out of the file, and retry"
            )
        if op not in _KINDS:
            raise ValueError(f"it is no change event of Debezium: its op is {op!r}")
        side = "before" if op == "d" else "after"
        image = value.get(side)
        if not isinstance(image, dict):
            raise ValueError(f"a change event with op {op!r} needs the row in {side!r}, which is {image!r}")
        logical = _logical(schema, side)
        row = {name: self._value(name, part, logical.get(name)) for name, part in image.items()}
        for name, path in self.ordering.items():
            found = _at(value, path) if path else self._by_name(value, row, name)
            if found is None:
                raise ValueError(f"the event has no value for ordering column {name!r}")
            _put(row, name, found)
        if self.op_column is not None:
            _put(row, self.op_column, op)
        row[KIND] = _KINDS[op]
        return row

    def _by_name(self, event: Mapping[str, Any], row: Mapping[str, Any], name: str) -> Any:
        """A value for an ordering column without a preset: from the row, from ``source``, or from the envelope."""
        for place in (row, event.get("source"), event):
            if isinstance(place, Mapping):
                for given, value in place.items():
                    if given.lower() == name.lower() and value is not None:
                        return value
        return None

    def _value(self, name: str, value: Any, logical: Mapping[str, Any] | None) -> Any:
        kind = self.types.get(name.lower())
        if value is None or kind is None:
            return value
        named = None if logical is None else logical.get("name")
        if named == _DECIMAL or isinstance(value, dict):
            return self._decimal(value, kind, logical)
        if pa.types.is_decimal(kind) and type(value) is str and logical is None and not self.decimals_are_text:
            return _unscaled(value, kind.scale)
        whole = type(value) is int
        if whole and (named in _DATES or (pa.types.is_date(kind) and logical is None)):
            return (_EPOCH + dt.timedelta(days=value)).date() if pa.types.is_date(kind) else value
        if whole and pa.types.is_timestamp(kind):
            unit = _NAMED_UNITS.get(named or "") or (self.timestamp_unit if logical is None else None)
            return _moment(value, unit, kind)
        return value

    def _decimal(self, value: Any, kind: pa.DataType, logical: Mapping[str, Any] | None) -> Any:
        """A value of type Decimal (Kafka Connect) or VariableScaleDecimal (Debezium)."""
        if isinstance(value, dict):
            if value.keys() != {"scale", "value"} or pa.types.is_nested(kind):
                return value
            return _plain(_unscaled(value["value"], int(value["scale"])), kind)
        if not isinstance(value, str | bytes):
            return value
        parameters = (logical or {}).get("parameters") or {}
        return _plain(_unscaled(value, int(parameters.get("scale", 0))), kind)


def _plain(number: Decimal, kind: pa.DataType) -> Any:
    return number if pa.types.is_decimal(kind) else format(number, "f")


def _unscaled(value: Any, scale: int) -> Decimal:
    """A decimal from the bytes of its whole number, in base64 where the event is JSON."""
    try:
        data = value if isinstance(value, bytes) else base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise ValueError(
            f"{value!r} is no decimal as Debezium writes them by default; where they are texts "
            "(decimal.handling.mode is string), set the option decimals to 'string'"
        ) from error
    number = int.from_bytes(data, "big", signed=True)
    sign, digits = int(number < 0), tuple(map(int, str(abs(number))))
    return Decimal((sign, digits, -scale))


def _moment(value: int, unit: str | None, kind: pa.DataType) -> dt.datetime:
    if unit is None:
        raise ValueError(
            f"the time {value} is a number without a unit; the option timestamp_unit says which: 'ms', 'us' or 'ns'"
        )
    factor = _UNITS[unit]
    if factor < 0 and value % -factor:
        raise ValueError(f"the time {value} has fractions of microseconds")
    try:
        moment = _EPOCH + dt.timedelta(microseconds=value * factor if factor > 0 else value // -factor)
    except OverflowError as error:
        raise ValueError(f"the time {value} in {unit} is beyond the year 9999") from error
    return moment if kind.tz is not None else moment.replace(tzinfo=None)


def _logical(schema: Any, side: str) -> dict[str, Mapping[str, Any]]:
    """Field of the row -> what the event's schema says about it."""
    for part in _fields(schema):
        if part.get("field") == side:
            return {str(field.get("field")): field for field in _fields(part)}
    return {}


def _fields(schema: Any) -> list[Mapping[str, Any]]:
    fields = schema.get("fields") if isinstance(schema, Mapping) else None
    return [field for field in fields if isinstance(field, Mapping)] if isinstance(fields, list) else []


def _at(event: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        event = event.get(name) if isinstance(event, Mapping) else None
    return event


def _put(row: dict[str, Any], name: str, value: Any) -> None:
    """Set a column. The row may have its name in another case."""
    for given in [given for given in row if given.lower() == name.lower()]:
        del row[given]
    row[name] = value
