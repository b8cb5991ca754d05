"""Made-up orders and their events for ``lakemerge demo``, and what is true of them, computed without a table.

The same orders and events come at every run, with every version of Python.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Final, NamedTuple

import pyarrow as pa

__all__ = ["BATCHES", "DDL", "KIND", "STORY", "Change", "Order", "batch", "changes_of", "first_load", "frame", "merged"]

DDL: Final = (
    "order_id BIGINT NOT NULL, customer STRING, state STRING, amount DECIMAL(10,2), updated_at TIMESTAMP NOT NULL"
)
KIND: Final = "kind"
"""The column of a frame that holds the kind of each event."""
BATCHES: Final = 4
STORY: Final = 1042
"""The order that the demo explains. Its events are written down by hand."""

_ORDERS: Final = 20_000
_EVENTS: Final = 2_000
_STATES: Final = ("paid", "packed", "shipped", "delivered")
_DAY: Final = dt.datetime(2026, 3, 2, tzinfo=dt.UTC)


class Order(NamedTuple):
    """An event: what an order is from ``updated_at`` on."""

    order_id: int
    customer: str
    state: str
    amount: Decimal
    updated_at: dt.datetime
    kind: str = "+U"

    @property
    def row(self) -> tuple[object, ...]:
        return self[:-1]


class Change(NamedTuple):
    """How a commit changed a row."""

    version: int
    kind: str
    row: tuple[object, ...]


def first_load() -> list[Order]:
    """All orders as they came in, in the morning."""
    return [_order(number, "new", 8 * 60 + _draw("minute", number, 60)) for number in range(1, _ORDERS + 1)]


def batch(number: int) -> list[Order]:
    """The events of a batch, counted from 1: some are late, some come twice, and some cancel their order."""
    events = [event for place in range(_EVENTS) for event in _events(number, place)]
    return [*events, *_story()[number - 1]]


def frame(events: Sequence[Order]) -> pa.Table:
    """As a frame that a table takes."""
    kinds: dict[str, pa.DataType] = {
        "order_id": pa.int64(),
        "customer": pa.string(),
        "state": pa.string(),
        "amount": pa.decimal128(10, 2),
        "updated_at": pa.timestamp("us", "UTC"),
        KIND: pa.string(),
    }
    columns = zip(*events, strict=True)
    return pa.table({name: pa.array(column, kinds[name]) for name, column in zip(kinds, columns, strict=True)})


def merged(events: Iterable[Order], start: Mapping[int, Order] | None = None) -> dict[int, Order]:
    """The newest event of each order, deletes included: a late one changes nothing."""
    newest = dict(start or {})
    for event in events:
        known = newest.get(event.order_id)
        if known is None or event.updated_at >= known.updated_at:
            newest[event.order_id] = event
    return newest


def changes_of(version: int, before: Mapping[int, Order], after: Mapping[int, Order]) -> Iterator[Change]:
    """What a change feed has to tell of the commit between two states of :func:`merged`."""
    for order_id, now in after.items():
        past = before.get(order_id)
        was = None if past is None or past.kind == "-D" else past.row
        row = None if now.kind == "-D" else now.row
        if was == row:
            continue
        if was is not None:
            yield Change(version, "-D" if row is None else "-U", was)
        if row is not None:
            yield Change(version, "+I" if was is None else "+U", row)


def _events(number: int, place: int) -> Iterator[Order]:
    order_id = 1 + _draw(f"order {number}", place, _ORDERS)
    if order_id == STORY:
        return
    dice = _draw(f"dice {number}", place, 100)
    hour = 6 + 4 * number - (7 if dice < 10 else 0)  # one event of ten tells of seven hours ago
    state = _STATES[_draw(f"state {number}", place, len(_STATES))]
    event = _order(order_id, state, 60 * hour + _draw(f"minute {number}", place, 240))
    yield event._replace(kind="-D") if dice >= 97 else event
    if 50 <= dice < 55:
        yield event  # a sender that got no answer sends it again


def _story() -> tuple[tuple[Order, ...], ...]:
    shipped = _order(STORY, "shipped", 11 * 60 + 30)
    paid_late = _order(STORY, "paid", 10 * 60 + 15)
    return (shipped,), (paid_late,), (shipped,), (_order(STORY, "delivered", 19 * 60 + 5),)


def _order(order_id: int, state: str, minute: int) -> Order:
    cents = 500 + _draw("amount", order_id, 40_000)
    customer = f"customer {_draw('customer', order_id, 500):03d}"
    return Order(order_id, customer, state, Decimal(cents) / 100, _DAY + dt.timedelta(minutes=minute))


def _draw(what: str, number: int, below: int) -> int:
    """A number from 0 on that looks drawn by lot, and is the same every time."""
    digest = hashlib.blake2b(f"{what} {number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) % below
