"""Change events in their envelopes, as rows for the presets of change capture.

Source: Debezium documentation, "MySQL connector" and "PostgreSQL connector", sections on data change events and data
type mappings; AWS Database Migration Service user guide, "Using Amazon S3 as a target".
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from lakemerge.errors import FrameError, InputError
from lakemerge.format.config import TableConfig
from lakemerge.ingest.logical import (
    CONNECT_DECIMAL,
    CONNECT_TEXTS,
    CONNECT_TIMES,
    VARIABLE_DECIMAL,
    Day,
    Moment,
    unscaled,
    zoneless,
)
from lakemerge.ingest.row_casting import Literal

__all__ = ["KIND", "OP", "Debezium", "dms_kinds"]

KIND: Final = "_lm_row_kind"
"""The kind column of frames that envelopes make. No column of a table has such a name."""
OP: Final = "Op"
"""The operation in files of DMS."""

dms_kinds: Final[Mapping[str, str]] = {"I": "+I", "U": "+U", "D": "-D"}

_KINDS: Final = {"c": "+I", "r": "+I", "u": "+U", "d": "-D"}
_PLACES: Final[Mapping[str, tuple[str, ...]]] = {"debezium-mysql": ("file", "pos"), "debezium-postgres": ("lsn",)}
"""Preset -> the fields of ``source`` that its ordering columns hold, in their order."""
_UNITS: Final = ("s", "ms", "us", "ns", "isostring")
_DECIMALS: Final = ("precise", "string")
_MOST_SCALE: Final = 1000


@dataclass(frozen=True, slots=True)
class Debezium:
    """Turns a change event into rows, with their kinds in :data:`KIND`. Picklable.

    Most events are one row. An event that changes no row has none, and an update that changes the key has two: a delete
    of the old key, and then an insert of the new one.

    An event with its schema says what its values mean. Without it, a number may be a time in any unit, and a text a
    decimal of any scale. Nothing of that is guessed: options say it for each column, or the event is refused.

    Raises ``ValueError`` if the value is no change event, or does not tell what a value means, and :class:`FrameError`
    for a truncate.
    """

    key: tuple[str, ...]

    types: Mapping[str, pa.DataType]
    """The types of the table's columns, by lower-case name."""
    ordering: Mapping[str, tuple[str, ...]]
    """Ordering column -> the place of its value in the envelope."""
    op_column: str | None
    units: Mapping[str, str]
    """Column, in lower case -> how its times are written where the event does not say it. ``""``: all others."""
    decimals: Mapping[str, str | int]
    """Column, in lower case -> how its decimals are written where the event does not say it: as texts, or with this
    scale. ``""``: all others."""

    @staticmethod
    def of(config: TableConfig, options: Mapping[str, Any]) -> Debezium:
        """For a table. Raises :class:`InputError` for options that do not fit it."""
        columns = {name.lower() for name in config.schema.names}
        problems: list[str] = []
        units = _by_column("timestamp_unit", options.get("timestamp_unit"), columns, problems)
        decimals = _by_column("decimals", options.get("decimals"), columns, problems)
        places = _PLACES.get(config.merger_name, ())
        ordering = {name: ("source", place) for name, place in zip(config.ordering, places, strict=bool(places))}
        given = options.get("ordering", {})
        if strange := [unit for unit in units.values() if unit not in _UNITS]:
            problems.append(f"timestamp_unit must be one of {', '.join(_UNITS)}, not {strange[0]!r}")
        if strange := [how for name, how in decimals.items() if not _is_decimal_mode(name, how)]:
            problems.append(f"decimals must be 'precise', 'string', or a scale for each column, not {strange[0]!r}")
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
            key=config.key,
            types={column.name.lower(): column.type for column in config.schema},
            ordering={name: ordering.get(name, ()) for name in config.ordering},
            op_column=op_column if isinstance(op_column, str) else None,
            units=units,
            decimals=decimals,
        )

    def __call__(self, value: Any) -> Sequence[dict[str, Any]]:
        schema: Any = None
        if isinstance(value, dict) and value.keys() == {"schema", "payload"}:
            schema, value = value["schema"], value["payload"]
        if value is None:
            return ()  # a tombstone, for Kafka to forget the key
        if not isinstance(value, dict):
            raise ValueError("it is not a change event of Debezium")
        op = value.get("op")
        if op == "m":
            return ()  # a PostgreSQL message that concerns no row
        if op == "t":
            raise FrameError(
                "a truncate is not supported: it does not say which rows it removed. Delete them (delete_where), "
                "remove the event from the file, and retry"
            )
        if op not in _KINDS:
            raise ValueError(f"it is not a change event of Debezium: its op is {op!r}")
        side = "before" if op == "d" else "after"
        image = value.get(side)
        if not isinstance(image, dict):
            raise ValueError(f"a change event with op {op!r} needs the row in {side!r}, which is {image!r}")
        row = self._row(image, schema, side)
        former = None
        if op == "u" and isinstance(before := value.get("before"), dict):
            former = self._moved_from(self._row(before, schema, "before"), row)
        made = [self._completed(row, value, "c" if former else op, row)]
        return made if former is None else [self._completed(former, value, "d", row), *made]

    def _row(self, image: Mapping[str, Any], schema: Any, side: str) -> dict[str, Any]:
        told = _logical(schema, side)
        return {
            name: self._value(name, part, self.types.get(name.lower()), told.get(name)) for name, part in image.items()
        }

    def _moved_from(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any] | None:
        """The key that a row had before an update; ``None`` if it is the same, or the event does not have it."""
        old = {name: _named(before, name) for name in self.key}
        new = {name: _named(after, name) for name in self.key}
        if any(value is None for value in (*old.values(), *new.values())):
            return None
        return None if all(_comparable(old[name]) == _comparable(new[name]) for name in self.key) else old

    def _completed(self, row: dict[str, Any], event: Any, op: str, image: Mapping[str, Any]) -> dict[str, Any]:
        """A row with its ordering, its operation and its kind.

        :param image: the row that the event brings. Its ordering counts also for the delete of a former key.
        """
        for name, path in self.ordering.items():
            found = _at(event, path) if path else self._by_name(event, image, name)
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

    def _value(self, name: str, value: Any, kind: pa.DataType | None, logical: Mapping[str, Any] | None) -> Any:
        """A value of a column, or of a part of it.

        :param kind: its type in the table; ``None``: the table lacks it, so only the event's schema counts.
        :param logical: what the event's schema says of it.
        """
        if value is None or (kind is None and logical is None):
            return value
        if logical is not None:
            found = self._told(name, value, kind, logical)
        else:
            found = value if kind is None else self._untold(name, value, kind)
        if type(found) is int and kind is not None and pa.types.is_timestamp(kind):
            return Moment(found, self._unit(name, found), None)
        return found

    def _told(self, name: str, value: Any, kind: pa.DataType | None, logical: Mapping[str, Any]) -> Any:
        """A value of which the schema says what it means."""
        named, base = logical.get("name"), logical.get("type")
        if isinstance(named, str) and named in CONNECT_TIMES and type(value) is int:
            return CONNECT_TIMES[named](value)
        if named in CONNECT_TEXTS and type(value) is str:
            return zoneless(value)
        if named == CONNECT_DECIMAL and isinstance(value, str | bytes):
            scale = (logical.get("parameters") or {}).get("scale")
            if scale is None:
                raise ValueError(f"the event's schema has no scale for {name!r}")
            return unscaled(_bytes(value), int(scale))
        if isinstance(value, Mapping) and (named == VARIABLE_DECIMAL or base == "struct"):
            if named == VARIABLE_DECIMAL and (kind is None or not pa.types.is_nested(kind)):
                return _variable(value)
            return self._parts(name, value, kind, {str(part.get("field")): part for part in _fields(logical)})
        if isinstance(value, list) and base == "array":
            inner = _schema(logical.get("items"))
            return [self._value(name, part, _item(kind), inner) for part in value]
        if isinstance(value, Mapping) and base == "map":
            inner = _schema(logical.get("values"))
            return {key: self._value(name, part, _item(kind), inner) for key, part in value.items()}
        if base == "bytes" and kind is not None and pa.types.is_decimal(kind):
            raise ValueError(f"the event's schema says that {name!r} is bytes, which are not a decimal")
        return value

    def _untold(self, name: str, value: Any, kind: pa.DataType) -> Any:
        """A value of which no schema says what it means."""
        if isinstance(value, Mapping):
            if value.keys() == {"scale", "value"} and not pa.types.is_nested(kind):
                return _variable(value)
            return self._parts(name, value, kind, {})
        if isinstance(value, list):
            return [self._value(name, part, _item(kind), None) for part in value]
        how = self.decimals.get(name.lower())
        if isinstance(value, str | bytes) and (pa.types.is_decimal(kind) or type(how) is int):
            how = self.decimals.get("") if how is None else how
            if type(how) is int:
                return unscaled(_bytes(value), how)
            if how != "string" or isinstance(value, bytes):
                raise ValueError(
                    f"the event has no schema that tells the scale of the decimal {value!r} in {name!r}: name it "
                    f"(decimals={{{name!r}: 2}}), say that decimals are texts (decimals='string', where "
                    "decimal.handling.mode is string), or let the connector write schemas"
                )
        if type(value) is int and pa.types.is_date(kind):
            return Day(value)
        is_time = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
        if type(value) is str and is_time and self.units.get(name.lower(), self.units.get("")) == "isostring":
            return zoneless(value)
        return value

    def _parts(
        self, name: str, value: Mapping[str, Any], kind: pa.DataType | None, logical: Mapping[str, Mapping[str, Any]]
    ) -> Any:
        """The fields of a struct, or the values of a map of which no schema tells."""
        if kind is None or not pa.types.is_struct(kind):
            inner = _item(kind)
            return {key: self._value(name, part, inner, logical.get(key)) for key, part in value.items()}
        kinds = {field.name.lower(): field.type for field in kind}
        return {key: self._value(name, part, kinds.get(key.lower()), logical.get(key)) for key, part in value.items()}

    def _unit(self, name: str, value: int) -> Any:
        unit = self.units.get(name.lower(), self.units.get(""))
        if unit is None or unit == "isostring":
            raise ValueError(
                f"the time {value} in {name!r} is a number, and the event does not say its unit: name it "
                f"(timestamp_unit={{{name!r}: 'ms'}}, or 'us', 'ns'), or let the connector write schemas"
            )
        return unit


def _by_column(option: str, given: Any, columns: Collection[str], problems: list[str]) -> dict[str, Any]:
    """A setting for columns by their names in lower case, and for all others as ``""``."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        return {"": given}
    strange = sorted(str(name) for name in given if not isinstance(name, str) or name.lower() not in columns)
    if strange:
        problems.append(f"{option} names {strange[0]!r}, which is not a column of the table")
    return {str(name).lower(): value for name, value in given.items()}


def _is_decimal_mode(name: str, how: Any) -> bool:
    if type(how) is int:
        return bool(name) and -_MOST_SCALE <= how <= _MOST_SCALE
    return isinstance(how, str) and how in _DECIMALS


def _item(kind: pa.DataType | None) -> pa.DataType | None:
    """The type of the elements of a list, or of the values of a map."""
    if kind is None:
        return None
    if pa.types.is_map(kind):
        return kind.item_type
    return kind.value_type if pa.types.is_list(kind) else None


def _variable(value: Mapping[str, Any]) -> Decimal:
    """A decimal that has its scale with it."""
    scale = value.get("scale")
    if type(scale) is not int or abs(scale) > _MOST_SCALE:
        raise ValueError(f"{value!r} is not a decimal with its scale")
    return unscaled(_bytes(value.get("value")), scale)


def _bytes(value: Any) -> bytes:
    """Bytes, which are in base64 where the event is JSON."""
    try:
        return value if isinstance(value, bytes) else base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise ValueError(
            f"{value!r} is not a decimal as Debezium writes them by default; if they are texts "
            "(decimal.handling.mode is string), set the option decimals to 'string'"
        ) from error


def _comparable(value: Any) -> Any:
    return Decimal(value) if isinstance(value, Literal) else value


def _named(row: Mapping[str, Any], name: str) -> Any:
    """The value of a column, whose name may be in another case."""
    if name in row:
        return row[name]
    return next((value for given, value in row.items() if given.lower() == name.lower()), None)


def _schema(given: Any) -> Mapping[str, Any] | None:
    return given if isinstance(given, Mapping) else None


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
