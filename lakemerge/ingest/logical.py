"""Values that files hold as plain numbers or bytes, and whose meaning the file's schema tells: times, spans, decimals.

They keep the number as the source has it, so that no column type loses more than it must, and times are not bound to
the years 1 to 9999 of Python's own types. Sources: Apache Avro specification, "Logical Types"; Kafka Connect API,
package ``org.apache.kafka.connect.data``; Debezium documentation, "Temporal types" of each connector.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Literal, TypeAlias

import numpy as np

__all__ = [
    "CONNECT_DECIMAL",
    "CONNECT_TEXTS",
    "CONNECT_TIMES",
    "VARIABLE_DECIMAL",
    "Clock",
    "Day",
    "Moment",
    "Span",
    "Unit",
    "unscaled",
    "zoneless",
]

Unit: TypeAlias = Literal["s", "ms", "us", "ns"]

_NANOS: Final[Mapping[str, int]] = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class Moment:
    """A time of a day. ``zone`` true: in UTC; false: a wall clock; ``None``: the source does not say which."""

    number: int
    unit: Unit
    zone: bool | None

    def micros(self) -> int:
        """Microseconds since 1970. Raises ``ValueError`` for fractions of them."""
        nanos = self.number * _NANOS[self.unit]
        if nanos % 1000:
            raise ValueError(f"the time {self.number} has fractions of microseconds")
        micros = nanos // 1000
        if not -(2**63) <= micros < 2**63:
            raise ValueError(f"the time {self.number} is beyond what a column can hold")
        return micros

    def __str__(self) -> str:
        nanos = self.number * _NANOS[self.unit]
        try:
            moment = _EPOCH + dt.timedelta(microseconds=nanos // 1000)
            text = moment.replace(tzinfo=None).isoformat(sep=" ")
        except OverflowError:  # a year that Python has no times of
            text = str(np.datetime64(nanos // 10**9, "s")).replace("T", " ")
        if nanos % 1000:
            text = f"{text.partition('.')[0]}.{nanos % 10**9:09}"
        return f"{text}+00:00" if self.zone else text


@dataclass(frozen=True, slots=True)
class Day:
    """Days since 1970-01-01."""

    number: int

    def __str__(self) -> str:
        return str(np.datetime64(self.number, "D"))


@dataclass(frozen=True, slots=True)
class Clock:
    """A time of no day, since midnight. MySQL has such times beyond 24 hours, and below zero."""

    number: int
    unit: Unit

    def __str__(self) -> str:
        nanos = abs(self.number) * _NANOS[self.unit]
        seconds, rest = divmod(nanos, 10**9)
        text = f"{'-' if self.number < 0 else ''}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        if not rest:
            return text
        return f"{text}.{rest:09}" if rest % 1000 else f"{text}.{rest // 1000:06}"


@dataclass(frozen=True, slots=True)
class Span:
    """Months, days and milliseconds, each by itself."""

    months: int
    days: int
    millis: int

    def __str__(self) -> str:
        return f"P{self.months}M{self.days}DT{self.millis // 1000}.{self.millis % 1000:03}S"


def unscaled(data: bytes, scale: int) -> Decimal:
    """A decimal from the bytes of its whole number, highest first."""
    # Not by its text, because Python makes no text of more than some thousand digits.
    sign, digits, _ = Decimal(int.from_bytes(data, "big", signed=True)).as_tuple()
    return Decimal((sign, digits, -scale))


def zoneless(text: str) -> str:
    """A text of Debezium's ``isostring`` mode without the sign of UTC, which it has whether the source has a zone or
    not."""
    return text.removesuffix("Z").removesuffix("+00:00")


CONNECT_TIMES: Final[Mapping[str, Callable[[int], Moment | Day | Clock]]] = {
    "io.debezium.time.Timestamp": lambda value: Moment(value, "ms", None),
    "io.debezium.time.MicroTimestamp": lambda value: Moment(value, "us", None),
    "io.debezium.time.NanoTimestamp": lambda value: Moment(value, "ns", None),
    "org.apache.kafka.connect.data.Timestamp": lambda value: Moment(value, "ms", None),
    "io.debezium.time.Date": Day,
    "org.apache.kafka.connect.data.Date": Day,
    "io.debezium.time.Time": lambda value: Clock(value, "ms"),
    "io.debezium.time.MicroTime": lambda value: Clock(value, "us"),
    "io.debezium.time.NanoTime": lambda value: Clock(value, "ns"),
    "org.apache.kafka.connect.data.Time": lambda value: Clock(value, "ms"),
}
"""Name of a schema in Kafka Connect -> what its whole numbers mean."""
CONNECT_TEXTS: Final = frozenset({"io.debezium.time.IsoDate", "io.debezium.time.IsoTimestamp"})
"""Names of schemas whose texts end with ``Z`` though the source's type has no zone."""
CONNECT_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
VARIABLE_DECIMAL: Final = "io.debezium.data.VariableScaleDecimal"
