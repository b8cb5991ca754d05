"""Consumers: followers of the change feed for which vacuum keeps old versions.

Source: docs/table-format.md, section 7. A domain of the table says that a consumer exists. Its position is in a small
file, which it overwrites without a commit: a follower that committed would follow its own commits. A position that is
older than the real one is safe, because then more is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from lakemerge.delta import DomainMetadata, Snapshot
from lakemerge.errors import InputError, StoreError, TableDamagedError
from lakemerge.format.feed_offset import Offset
from lakemerge.format.values import whole_number
from lakemerge.storage.base import Put, Store
from mergers.logs import logger

__all__ = [
    "CONSUMER_DOMAIN_PREFIX",
    "CONSUMER_FOLDER",
    "Registration",
    "Sent",
    "advanced",
    "advanced_ms",
    "check_consumer_name",
    "delete_position",
    "joined",
    "registrations_of",
    "sent_to",
    "stored_position",
    "write_position",
]

CONSUMER_DOMAIN_PREFIX: Final = "lakemerge.consumer."
CONSUMER_FOLDER: Final = "_lakemerge/consumers"

_MOST_TRIES: Final = 10
_MOST_SENT: Final = 256
"""A position tells of so many moments; older ones are joined."""
_ONE_PART_MS: Final = 60_000
"""Positions that are confirmed within this time are one entry."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_logger = logger(__name__)


@dataclass(frozen=True, slots=True)
class Sent:
    """Versions whose changes a consumer confirmed."""

    first: int
    last: int
    begin_ms: int
    """When the first of them was confirmed, by the clock of the consumer's host, UTC epoch milliseconds."""
    end_ms: int
    """When the last of them was."""
    of_rows: bool = False
    """Whether ``first`` is a version that was sent as rows, with all that was committed before."""

    def holds(self, version: int) -> bool:
        """Whether the records of a version are among what was sent."""
        return version <= self.last and (self.of_rows or version >= self.first)

    def and_then(self, later: Sent) -> Sent:
        return Sent(self.first, later.last, self.begin_ms, later.end_ms, self.of_rows)

    def to_json(self) -> list[int]:
        return [self.first, self.last, self.begin_ms, self.end_ms, int(self.of_rows)]

    @staticmethod
    def of(body: Any) -> Sent:
        """Raises :class:`ValueError` or :class:`TypeError` if it is none."""
        first, last, begin_ms, end_ms, of_rows = body
        return Sent(
            whole_number(first), whole_number(last), whole_number(begin_ms), whole_number(end_ms), of_rows=bool(of_rows)
        )


def advanced(sent: Sequence[Sent], before: Offset, after: Offset, now_ms: int) -> list[Sent]:
    """What was sent, once a consumer has moved from one offset to another. Old parts are joined, so that there are
    not too many."""
    left = list(sent)
    if after.version > before.version or (before.of_rows and not after.of_rows):
        fresh = Sent(before.version, max(before.version, after.version - 1), now_ms, now_ms, before.of_rows)
        if left and not fresh.of_rows and fresh.end_ms - left[-1].begin_ms < _ONE_PART_MS:
            left[-1] = left[-1].and_then(fresh)
        else:
            left.append(fresh)
    return joined(left, _MOST_SENT)


def joined(sent: Sequence[Sent], most: int) -> list[Sent]:
    """At most so many parts: the oldest are joined."""
    left = list(sent)
    while len(left) > most:
        left[:2] = [left[0].and_then(left[1])]
    return left


@dataclass(frozen=True, slots=True)
class Registration:
    """A consumer, as the table's log has it."""

    name: str
    id: str
    """It differs from the id of a dropped consumer of the same name."""
    begin: Offset
    created_ms: int
    """UTC epoch milliseconds."""
    expires_after_ms: int
    """If it does not advance for so long, it may be expired."""

    @property
    def domain_name(self) -> str:
        return CONSUMER_DOMAIN_PREFIX + self.name

    @property
    def path(self) -> str:
        """The file that holds the position."""
        return f"{CONSUMER_FOLDER}/{self.name}"

    def domain(self) -> DomainMetadata:
        body = {
            "id": self.id,
            "begin": self.begin.to_json(),
            "created": self.created_ms,
            "expiresAfter": self.expires_after_ms,
        }
        return DomainMetadata(self.domain_name, orjson.dumps(body).decode(), False)

    def position(self, offset: Offset, sent: Sequence[Sent] = ()) -> bytes:
        """The contents of the position's file."""
        return orjson.dumps({"id": self.id, **offset.to_json(), "sent": [part.to_json() for part in sent]})


def check_consumer_name(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(
            f"a consumer's name has up to 100 letters, digits, '.', '_' and '-', and starts with one of the former "
            f"two, not {name!r}"
        )
    return name


def registrations_of(snapshot: Snapshot) -> dict[str, Registration]:
    """The consumers by name."""
    domains = [d for name, d in snapshot.domains.items() if name.startswith(CONSUMER_DOMAIN_PREFIX)]
    return {found.name: found for found in sorted(map(_decode, domains), key=lambda found: found.name)}


def sent_to(store: Store, registration: Registration) -> list[Sent]:
    """What a consumer has confirmed, oldest first; empty if its position is missing, damaged or another's."""
    try:
        body = _own_body(store, registration)
        return [] if body is None else [Sent.of(part) for part in body.get("sent", ())]
    except (FileNotFoundError, InputError, KeyError, ValueError, TypeError):
        return []


def stored_position(store: Store, registration: Registration) -> Offset:
    """The position of a consumer. If the file is missing, damaged or of an earlier consumer, it is where the consumer
    began."""
    own = _own_position(store, registration)
    return registration.begin if own is None else max(registration.begin, own)


def advanced_ms(store: Store, registration: Registration) -> int | None:
    """When the position of a consumer was written, by the store's clock; ``None`` if there is none, or if that is still
    the position of a dropped consumer of the same name."""
    found = store.stat(registration.path)
    if found is None:
        return None
    try:
        body: Any = orjson.loads(store.get(registration.path))
        is_anothers = isinstance(body, dict) and body.get("id") != registration.id
    except FileNotFoundError:
        return None
    except ValueError:
        is_anothers = False  # damaged
    return None if is_anothers else found.modified_ms


def write_position(
    store: Store, registration: Registration, offset: Offset, *, now_ms: int, check_holds: Callable[[], None]
) -> None:
    """Write where a consumer stands, unless it is further already.

    Every table may have a consumer of that name, so only a file that was looked at is replaced, and only one of this
    consumer, or one that no consumer of this table has. If somebody else writes it at the same time, it is read again.

    :param now_ms: the time by this host's clock. It is only told.
    :param check_holds: raises :class:`lakemerge.TableReplacedError` if the folder holds another table by now.
    """
    for _ in range(_MOST_TRIES):
        found = store.stat(registration.path)
        if found is None:
            if store.put_if_absent(registration.path, registration.position(offset)) is Put.CREATED:
                return
            continue
        own = _own_position(store, registration)
        if own is None:
            check_holds()  # after the look: the file is older than any other table here
        elif own > offset:
            return
        sent = [] if own is None else advanced(sent_to(store, registration), own, offset, now_ms)
        data = registration.position(offset, sent)
        if store.replace_exact(found, data):
            return
    raise StoreError(
        f"the position of consumer {registration.name!r} was changed by other readers {_MOST_TRIES} times meanwhile: "
        "use each consumer in one reader only",
        path=registration.path,
    )


def delete_position(store: Store, registration: Registration) -> None:
    """Delete the position of a consumer that was dropped, and no other consumer's or table's."""
    found = store.stat(registration.path)
    if found is not None and _own_position(store, registration) is not None:
        store.delete_exact([found])


def _own_position(store: Store, registration: Registration) -> Offset | None:
    """What the file says of this consumer; ``None`` if it is missing, damaged or another's."""
    try:
        body = _own_body(store, registration)
        return None if body is None else Offset.of(body)
    except FileNotFoundError:
        return None
    except (InputError, KeyError, ValueError, TypeError):
        _logger.warning(
            "the position of consumer %r cannot be read; it starts again from its beginning",
            registration.name,
            exc_info=True,
        )
        return None


def _own_body(store: Store, registration: Registration) -> dict[str, Any] | None:
    body: Any = orjson.loads(store.get(registration.path))
    return body if body["id"] == registration.id else None


def _decode(domain: DomainMetadata) -> Registration:
    try:
        body = orjson.loads(domain.configuration)
        if not isinstance(body["id"], str):
            raise TypeError("id")
        return Registration(
            name=domain.domain.removeprefix(CONSUMER_DOMAIN_PREFIX),
            id=body["id"],
            begin=Offset.of(body["begin"]),
            created_ms=whole_number(body["created"]),
            expires_after_ms=whole_number(body["expiresAfter"]),
        )
    except (InputError, KeyError, ValueError, TypeError) as error:
        raise TableDamagedError(f"domain {domain.domain!r} is damaged: {error!r}", domain=domain.domain) from error
