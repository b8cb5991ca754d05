"""What the clients of Google's and Azure's stores share: connections, tries, and what an answer means.

The packages below (gcsfs, adlfs and their SDKs) find the credentials and run the requests. They try nothing again by
themselves here; this module does, where a request may be sent twice.
"""

from __future__ import annotations

import errno
import functools
import importlib
import importlib.util
import os
import random
import time
import weakref
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from lakemerge._internal.pools import thread_pool
from lakemerge.errors import DependencyMissingError, InputError, StoreError
from lakemerge.storage.base import FileStat, NothingCreatedError, Put
from lakemerge.storage.object_client import ObjectClient
from lakemerge.storage.options import secret_options, without_values
from mergers.interrupts import is_interrupt
from mergers.logs import logger
from mergers.wording import argument

__all__ = ["CloudClient", "OtherVersionError", "Told"]

_LOG = logger(__name__)

_TRIES = 7
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 8.0
"""GCS takes one write of an object in a second. Seven tries last twelve seconds on average."""
_AT_ONCE = 16
"""How many deletes are under way at the same time."""
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP status codes after which the same request may succeed."""
_UNCLEAR = frozenset({408, 425, 429, 499})
"""HTTP status codes that say nothing about the request, in addition to all from 500 on."""

_ABOUT_AN_OBJECT = frozenset({"look up", "read", "delete"})
"""Operations after which a missing object may be told. After any other a 404 is about the bucket."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Told:
    """What is known of a request that did not succeed."""

    status: int | None
    """The HTTP status of the answer; ``None`` if there was no answer, or not all of it."""
    code: str | None
    """The store's own word for it."""
    text: str
    is_missing: bool = False
    """The object is not there, if the request was about one. A bucket that is not there is something else."""
    is_other: bool = False
    """A condition was not met: the object has another version, or it is there and shall not be."""
    was_sent: bool = True
    """``False`` if the request surely was never sent."""


class CloudClient(ObjectClient):
    """Requests are coroutine functions that are given the file system of this process."""

    package: ClassVar[str]
    """The package of fsspec's file system."""
    extra: ClassVar[str]
    remedies: ClassVar[Mapping[str | int, str]]
    """Code or status of an answer, and what to do about it."""
    tries: int = _TRIES

    def __init__(self, bucket: str, options: Mapping[str, Any]) -> None:
        super().__init__(bucket)
        if importlib.util.find_spec(self.package) is None:
            raise DependencyMissingError(
                f"tables on {self.url('')} need {self.package}: pip install lakemerge[{self.extra}]",
                package=self.package,
            )
        self._options = dict(options)
        self._connections: dict[int, Any] = {}
        _clients.add(self)

    @abstractmethod
    def _new(self) -> Any:
        """A file system of fsspec that makes each request once, without caches."""

    @abstractmethod
    def _session(self, connection: Any) -> Any:
        """The session of aiohttp that the file system uses; ``None`` if it has none yet."""

    @abstractmethod
    def _errors(self) -> tuple[type[Exception], ...]:
        """What a request may raise."""

    @abstractmethod
    def _told(self, error: Exception) -> Told: ...

    @abstractmethod
    def _secrets(self) -> Sequence[str]:
        """Secrets that are parts of the values of options."""

    @abstractmethod
    def _create(self, key: str, data: bytes) -> Callable[[Any], Awaitable[object]]:
        """The request that creates the object unless it is there."""

    @abstractmethod
    def _replace(self, key: str, data: bytes, etag: str) -> Callable[[Any], Awaitable[object]]:
        """The request that replaces that version of the object."""

    @abstractmethod
    def _delete(self, key: str, etag: str) -> Callable[[Any], Awaitable[object]]:
        """The request that deletes the object, or that version of it."""

    def put_if_absent(self, key: str, data: bytes) -> Put:
        """Raises :class:`NothingCreatedError` if no request was sent, and :class:`StoreError` for an answer that is a
        refusal, which does not prove that the request was not carried out."""
        _, error = self._once(self._create(key, data))
        if error is None:
            return Put.CREATED
        told = self._told(error)
        if told.is_other:
            return Put.EXISTS
        if not told.was_sent:
            refusal = self._error(told, "create", key)
            raise NothingCreatedError(refusal.message, **refusal.facts) from None
        if told.status is None or told.status >= 500 or told.status in _UNCLEAR or told.status == 409:
            _LOG.warning("no clear answer to creating %s: %s", self.url(key), self._shown(told))
            return Put.UNKNOWN
        raise self._error(told, "create", key)

    def replace(self, key: str, data: bytes, *, etag: str) -> bool:
        _, error = self._once(self._replace(key, data, etag))
        if error is None:
            return True
        told = self._told(error)
        if told.is_other or told.is_missing:
            return False
        raise self._error(told, "replace", key)

    def delete(self, files: Sequence[tuple[str, str]]) -> Sequence[str]:
        if len(files) < 2:
            return [key for key, etag in files if not self._deleted(key, etag)]
        with thread_pool(min(_AT_ONCE, len(files))) as pool:
            done = pool.map(lambda file: self._deleted(*file), files)
            return [key for (key, _), is_done in zip(files, done, strict=True) if not is_done]

    def clean_up(self, prefix: str, *, before_ms: int, dry_run: bool) -> Sequence[FileStat]:
        """Nothing: the store ends such uploads itself after a week, and tells nobody of them."""
        return ()

    def _deleted(self, key: str, etag: str) -> bool:
        """Delete the object. If the answer to a first try was lost, a second one finds nothing, which is as good. Some
        stores say of a missing object that it has another version."""
        try:
            self._ask("delete", key, self._delete(key, etag))
        except FileNotFoundError:
            return True
        except OtherVersionError:
            try:
                self.look(key)
            except FileNotFoundError:
                return True
            return False
        return True

    def _ask(self, operation: str, key: str, request: Callable[[Any], Awaitable[T]]) -> T:
        """Make a request that may be sent more than once, until it succeeds or the tries end."""
        for number in range(1, self.tries + 1):
            answer, error = self._once(request)
            if error is None:
                return answer  # type: ignore[return-value]  # there is an answer or an error
            told = self._told(error)
            if number == self.tries or not told.was_sent or not (told.status is None or told.status in _PASSING):
                break
            _LOG.debug("%s %s is tried again: %s", operation, self.url(key), self._shown(told))
            self._pause(number)
        if told.is_missing and operation in _ABOUT_AN_OBJECT:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.url(key))
        raise self._error(told, operation, key)

    def _pause(self, number: int) -> None:
        longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (number - 1))
        time.sleep(longest * random.uniform(0.5, 1))  # noqa: S311 - no secret

    def _once(self, request: Callable[[Any], Awaitable[T]]) -> tuple[T | None, Exception | None]:
        """The answer or the error of one request. Exceptions that are not the request's own pass through: they are
        raised in this thread, and the request runs in another one."""
        connection, errors = self._connect(), self._errors()

        async def answer() -> tuple[T | None, Exception | None]:
            try:
                return await request(connection), None
            except errors as error:
                return None, error

        found: tuple[T | None, Exception | None] = importlib.import_module("fsspec.asyn").sync(connection.loop, answer)
        return found

    def _after_fork(self) -> None:
        """Let go of the parent's connections in a child. To close them, as aiohttp does when a process ends, would take
        their sockets out of the selector, which parent and child share: the parent would never hear of an answer."""
        for connection in self._connections.values():
            session = self._session(connection)
            if session is not None and session.connector is not None:
                session.connector._conns.clear()
                session.detach()

    def _connect(self) -> Any:
        """A file system of this process. One that was inherited by a fork stays referenced: to finalize it would wait
        for a thread that the child does not have."""
        connection = self._connections.get(os.getpid())
        if connection is None:
            refusals: tuple[type[Exception], ...] = (
                *(ValueError, TypeError, KeyError, AttributeError, OSError),
                *self._errors(),
            )
            try:
                connection = self._new()
            except refusals as error:
                if is_interrupt(error):
                    raise
                # The other package's error may hold values of options, so it is not kept as a cause.
                raise InputError(
                    f"{self.package} cannot use these {argument('storage_options')} for {self.url('')}: "
                    f"{self._hidden(f'{type(error).__name__}: {error}')}"
                ) from None
            connection = self._connections.setdefault(os.getpid(), connection)
        return connection

    def _error(self, told: Told, operation: str, key: str) -> StoreError:
        remedy = self.remedies.get(told.code or "", self.remedies.get(told.status or 0))
        text = f"{operation} {self.url(key)}: {self._shown(told)}{f'. {remedy}' if remedy else ''}"
        kind = OtherVersionError if told.is_other else StoreError
        return kind(text, url=self.url(key), store_code=told.code)

    def _shown(self, told: Told) -> str:
        code = told.code or (None if told.status is None else str(told.status))
        return self._hidden(told.text) + ("" if code is None else f" ({code})")

    def _hidden(self, text: str) -> str:
        return without_values(text, [secret_options(self._options), self._secrets()])


_clients: weakref.WeakSet[CloudClient] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_clients):
        client._after_fork()


os.register_at_fork(after_in_child=_after_fork)


class OtherVersionError(StoreError):
    """The object has another version than the one that was meant."""


def reason(error: Exception) -> str:
    """What an error without an answer says, in short."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@functools.cache
def errors_of_network() -> tuple[type[Exception], ...]:
    return (OSError, importlib.import_module("aiohttp").ClientError)
