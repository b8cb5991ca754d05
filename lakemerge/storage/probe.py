"""Tries out whether a place keeps the promises that tables need of a store (:class:`lakemerge.storage.base.Store`).

Everything happens in a new folder below the place, and is deleted at the end.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from lakemerge._internal.pools import thread_pool
from lakemerge.errors import StoreError
from lakemerge.storage import open_store
from lakemerge.storage.base import FileStat, NothingCreatedError, Put, Store, is_own_failure
from lakemerge.storage.clock import store_time_ms
from lakemerge.storage.local import LocalStore
from lakemerge.storage.object_store import ObjectStore
from lakemerge.storage.readonly import ReadOnlyStore
from mergers.logs import logger

__all__ = ["ProbeFinding", "ProbeResult", "probe"]

_LOG = logger(__name__)

_WRITERS = 8
_NAMES = 25
_LOOKS = 20
_SLACK_MS = 300_000
Verdict = Literal["kept", "weak", "broken", "unknown"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ProbeFinding:
    """What was found of one promise."""

    promise: str
    verdict: Verdict
    """``weak``: the store lacks it, and LakeMerge does something else that leaves a window, which the detail says.
    ``unknown``: the store's answers did not tell."""
    detail: str


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What :func:`probe` found. A promise that shows no break may still be broken: a race is lost by chance."""

    url: str
    findings: tuple[ProbeFinding, ...]

    @property
    def ok(self) -> bool:
        """Whether no promise was seen to be broken."""
        return all(finding.verdict != "broken" for finding in self.findings)


def probe(url: str | os.PathLike[str], storage_options: Mapping[str, object] | None = None) -> ProbeResult:
    """Try out the promises of the store at a place that need not exist. Nothing stays there.

    Raises :class:`lakemerge.errors.InputError` for a URL or options that cannot be used, and
    :class:`lakemerge.errors.StoreError` if the store cannot be reached at all.
    """
    place = open_store(url, storage_options)
    folder = f"lakemerge-probe-{uuid.uuid4().hex}"
    with _parents_as_before(place):
        return _probed(place.url, open_store(f"{place.url}/{folder}", storage_options))


def _probed(url: str, store: Store) -> ProbeResult:
    if isinstance(store, ReadOnlyStore):
        return ProbeResult(url, (_can_write(store),))
    store.stat("first")  # who cannot reach the store gets the error, and no finding
    findings: list[ProbeFinding] = []
    try:
        findings.append(_can_write(store))
        if findings[0].verdict == "kept":
            findings += [
                _judged(check, store) for check in (_race, _deletes, _replaces, _lists, _order, _output, _clock)
            ]
    finally:
        left = _cleared(store)
    return ProbeResult(url, (*findings, left))


def _judged(check: Callable[[Store], ProbeFinding], store: Store) -> ProbeFinding:
    """The finding of a check. Its first line of help is its promise, if the store fails in the middle of it."""
    try:
        return check(store)
    except (StoreError, OSError) as error:
        if not is_own_failure(error):
            raise
        promise = (check.__doc__ or "").partition("\n")[0].rstrip(".").lower()
        return ProbeFinding(promise, "unknown", f"the store failed: {error}")


def _can_write(store: Store) -> ProbeFinding:
    """Put-if-absent keeps what is there."""
    promise = "put-if-absent keeps what is there"
    try:
        outcomes = [store.put_if_absent("first", content) for content in (b"one", b"another")]
    except NothingCreatedError as error:
        return ProbeFinding(promise, "broken", str(error))
    found = store.get("first")
    told = f"two puts of one name were answered {outcomes[0].value} and {outcomes[1].value}"
    if outcomes == [Put.CREATED, Put.EXISTS] and found == b"one":
        return ProbeFinding(promise, "kept", told)
    if Put.UNKNOWN in outcomes and found in (b"one", b"another"):
        return ProbeFinding(promise, "unknown", told)
    return ProbeFinding(promise, "broken", f"{told}, and then {found!r} was there")


def _race(store: Store) -> ProbeFinding:
    """Put-if-absent is atomic."""
    promise = "put-if-absent is atomic"
    names = [f"race/{number:020}.json" for number in range(_NAMES)]

    def put(copy: Store, writer: int, name: str) -> Put:
        return copy.put_if_absent(name, _content(writer, name))

    outcomes = _raced(store, names, put)
    lost = unknown = 0
    for name in names:
        answers = [outcomes[writer, name] for writer in range(_WRITERS)]
        winners = [writer for writer, answer in enumerate(answers) if answer is Put.CREATED]
        there = store.get(name)
        if len(winners) > 1 or (winners and there != _content(winners[0], name)):
            lost += 1
        elif not winners:
            unknown += Put.UNKNOWN in answers
            lost += Put.UNKNOWN not in answers
    told = f"{_WRITERS} writers raced for {_NAMES} names"
    if lost:
        return ProbeFinding(promise, "broken", f"{told}; {lost} names had two winners, none, or a loser's content")
    if unknown:
        return ProbeFinding(promise, "unknown", f"{told}; of {unknown} the store did not tell the winner")
    return ProbeFinding(promise, "kept", f"{told}; each had one winner, whose content is there")


def _deletes(store: Store) -> ProbeFinding:
    """Deletes are conditional."""
    promise = "deletes are conditional"
    listed = _written_again(store, "deleted")
    if store.delete_exact([listed]) != (listed,) or store.get("deleted") != b"the second":
        return ProbeFinding(promise, "broken", "a file that was written after it was listed was deleted")
    if not isinstance(store, ObjectStore):
        return ProbeFinding(promise, "kept", "a file is taken aside, and looked at, before it is deleted")
    if store.deletes_in_one_step():
        return ProbeFinding(promise, "kept", "an object is deleted only in the version that was listed")
    return ProbeFinding(
        promise, "weak", "the condition is ignored, so LakeMerge looks at each object just before: "
        "what is written in that instant is lost"
    )  # fmt: skip


def _replaces(store: Store) -> ProbeFinding:
    """Replacements are conditional."""
    promise = "replacements are conditional"
    listed = _written_again(store, "replaced")
    if store.replace_exact(listed, b"x") or store.get("replaced") != b"the second":
        return ProbeFinding(promise, "broken", "a file that was written after it was listed was replaced")
    if isinstance(store, ObjectStore) and not store.replaces_in_one_step():
        return ProbeFinding(
            promise, "weak", "the condition is ignored, so LakeMerge looks at each object just before: "
            "what is written in that instant is lost"
        )  # fmt: skip
    if not isinstance(store, ObjectStore):
        return ProbeFinding(
            promise, "weak", "a file is looked at just before it is replaced: what is written in that instant is lost"
        )
    names = [f"replace/{number}" for number in range(_NAMES)]
    for name in names:
        store.put(name, b"before")
    files = {file.path: file for file in store.list("replace")}
    outcomes = _raced(store, names, lambda copy, writer, name: _replaced(copy, files[name], _content(writer, name)))
    for name in names:
        winners = [writer for writer in range(_WRITERS) if outcomes[writer, name]]
        if len(winners) > 1 or (winners and store.get(name) != _content(winners[0], name)):
            return ProbeFinding(promise, "broken", f"of {_WRITERS} replacements of one version two took place")
    return ProbeFinding(
        promise, "kept", f"{_WRITERS} writers raced for {_NAMES} objects; of each at most one replaced the version"
    )


def _lists(store: Store) -> ProbeFinding:
    """A listing shows what was written and deleted before."""
    promise = "a listing shows what was written and deleted before"
    late = []
    for number in range(_LOOKS):
        name = f"list/{number:03}"
        store.put(name, b"x")
        shown = {file.path for file in store.list("list")}
        late += [] if name in shown else [f"{name} was not listed after it was written"]
        if number % 2:
            store.delete([name])
            late += [f"{name} was listed after it was deleted"] * (name in {file.path for file in store.list("list")})
        else:
            store.put(name, b"longer")
            listed = {file.path: file for file in store.list("list")}.get(name)
            same = listed is not None and listed.size_bytes == 6 and store.get(name) == b"longer"
            late += [] if same else [f"{name} was listed or read as it was before it was replaced"]
    if late:
        return ProbeFinding(promise, "broken", f"{len(late)} of {_LOOKS} looks were late; the first: {late[0]}")
    return ProbeFinding(promise, "kept", f"{_LOOKS} of {_LOOKS} looks showed the last change")


def _order(store: Store) -> ProbeFinding:
    """Listings are in order of names."""
    promise = "listings are in order of names"
    names = ["order/B", "order/a-b", "order/a.b/c", "order/a/b", "order/a0", "order/é", "order/\uff5e", "order/😀"]
    for name in reversed(names):
        store.put(name, b"")
    found = [file.path for file in store.list("order")]
    after = [file.path for file in store.list("order", start_after="order/a/b")]
    if found == names and after == names[4:]:
        return ProbeFinding(promise, "kept", "sorted by their bytes, and a listing may begin anywhere")
    return ProbeFinding(promise, "broken", f"{found} instead of {names}")


def _output(store: Store) -> ProbeFinding:
    """A large file appears whole."""
    promise = "a large file appears whole"
    seen = []
    size_bytes = 17 << 20
    with store.open_output("output/large") as file:
        file.write(bytes(size_bytes))
        seen += [store.stat("output/large"), *store.list("output")]
    found = store.stat("output/large")
    if any(seen) or found is None or found.size_bytes != size_bytes:
        return ProbeFinding(promise, "broken", "it was seen before it was complete, or is not there")
    return ProbeFinding(promise, "kept", f"{size_bytes >> 20} MiB were seen only when all were written")


def _clock(store: Store) -> ProbeFinding:
    """The store's clock and this machine's agree."""
    promise = "the store's clock and this machine's agree"
    differ_ms = store_time_ms(store) - time.time_ns() // 1_000_000
    told = f"they differ by {abs(differ_ms) / 1000:.1f} seconds"
    if abs(differ_ms) <= _SLACK_MS:
        return ProbeFinding(promise, "kept", told)
    return ProbeFinding(promise, "weak", f"{told}: ages are by the store's clock, but times of commits are this one's")


def _cleared(store: Store) -> ProbeFinding:
    promise = "nothing stays behind"
    try:
        store.delete([file.path for file in store.list("")])
        store.delete_empty_folders("")
        left = [file.path for file in store.list("")]
    except (StoreError, OSError) as error:
        if not is_own_failure(error):
            raise
        return ProbeFinding(promise, "broken", f"delete {store.url}: {error}")
    if left:
        return ProbeFinding(promise, "broken", f"{len(left)} files stay: delete {store.url}")
    return ProbeFinding(promise, "kept", "all files of the probe are deleted")


def _written_again(store: Store, name: str) -> FileStat:
    """The file as it was listed before it was written again."""
    store.put(name, b"the first")
    listed = store.stat(name)
    if listed is None:
        raise StoreError(f"{name} was just written to {store.url}, and is not there", path=name)
    time.sleep(0.01)  # where a time tells versions apart
    store.put(name, b"the second")
    return listed


def _replaced(store: Store, file: FileStat, data: bytes) -> bool:
    try:
        return store.replace_exact(file, data)
    except StoreError:
        return False


def _content(writer: int, name: str) -> bytes:
    return f"{writer} wrote {name}\n".encode() * (10 + writer)


def _raced(store: Store, names: Sequence[str], do: Callable[[Store, int, str], T]) -> dict[tuple[int, str], T]:
    """All writers do the same with one name after the other, each name at the same time."""
    barrier = threading.Barrier(_WRITERS)

    def run(writer: int) -> dict[tuple[int, str], T]:
        copy: Store = pickle.loads(pickle.dumps(store))  # noqa: S301 - its own connection
        found = {}
        try:
            copy.stat("first")  # connects
            for name in names:
                barrier.wait(120)
                found[writer, name] = do(copy, writer, name)
        except BaseException:
            barrier.abort()
            raise
        return found

    with thread_pool(_WRITERS, together=True) as pool:
        runs = [pool.submit(run, writer) for writer in range(_WRITERS)]
        failures = [error for error in (one.exception() for one in runs) if error is not None]
        for failure in sorted(failures, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
            raise failure
        return {key: value for one in runs for key, value in one.result().items()}


@contextlib.contextmanager
def _parents_as_before(place: Store) -> Iterator[None]:
    """Local folders above the probe that were not there are gone afterwards."""
    missing = []
    folder = place.url if isinstance(place, LocalStore) else ""
    while folder and not os.path.isdir(folder) and folder != os.path.dirname(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    try:
        yield
    finally:
        for made in missing:
            with contextlib.suppress(OSError):  # somebody else uses it, or it was not made
                os.rmdir(made)
