"""A table and a writer on a scripted server, whatever its protocol. The rules are in ``test_wire_s3.py``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakemerge import LakeMergeError, LakeTable, OutcomeUnknownError
from lakemerge.delta import DeltaLog, Snapshot
from lakemerge.handle import Handle
from lakemerge.storage import open_store
from lakemerge.storage.object_client import ObjectClient
from mergers import default_registry
from tests.s3.wire import Answer, Object, Wire

__all__ = ["ALL_WELL", "GETS", "LATE", "PUTS", "SECOND_PUTS", "Stage", "played", "told"]

STATUSES = (400, 403, 404, 409, 412, 499, 500, 503)
ALL_WELL = Answer("now", "the truth")
PUTS = (
    ALL_WELL,
    *(Answer("now", status) for status in STATUSES),
    *(Answer("never", status) for status in STATUSES),
    *(Answer(does, "closed") for does in ("now", "never", "afterwards")),
)
GETS = (ALL_WELL, *(Answer("now", status) for status in (400, 403, 404, 499, 503)), Answer("now", "closed"))
SECOND_PUTS = (
    Answer("now", "closed"),
    Answer("never", 403),
    Answer("now", 499),
    Answer("afterwards", "closed"),
    Answer("now", 403),
    Answer("never", 409),
    Answer("never", "closed"),
    Answer("never", 412),
    Answer("now", 503),
    ALL_WELL,
)
LATE = (Answer("now", "late"), Answer("never", "late"), Answer("afterwards", "late"))
PROPERTIES = {"lakemerge.maintenance": "off"}


@dataclass
class Stage:
    """A table with one record, and a writer of a second one."""

    wire: Wire
    handle: Handle
    snapshot: Snapshot
    folder: Path
    objects: dict[str, Object]
    tries: list[str]
    """The commit puts that the client was asked for."""

    @staticmethod
    def of(
        wire: Wire,
        url: str,
        client: type[ObjectClient],
        monkeypatch: pytest.MonkeyPatch,
        folder: Path,
        read_timeout: float = 60,
    ) -> Stage:
        """:param client: the class of the client for the protocol."""
        wire.begin({}, [], [])
        table = LakeTable.create(
            url, "id BIGINT, v STRING", key=["id"], buckets=1, properties=PROPERTIES, storage_options=wire.options
        )
        table.upsert(row(1))
        store = open_store(url, wire.quick(read_timeout))
        handle = Handle(store, DeltaLog(store, sleep=lambda _: None), default_registry(), table.opened.handle.settings)
        store.put_if_absent("warm", b"")  # the endpoint is tried out once
        tries: list[str] = []
        really = client.put_if_absent

        def counted(self: Any, key: str, *given: Any, **named: Any) -> Any:
            tries.append(key)
            return really(self, key, *given, **named)

        monkeypatch.setattr(client, "put_if_absent", counted)
        return Stage(wire, handle, table.opened.view.snapshot, folder, dict(wire.objects), tries)

    def play(self, first: Answer, looks: Answer, second: Answer) -> tuple[list[str], bool]:
        """Play a combination. Returns what is wrong, and whether the second put was reached."""
        wire = self.wire
        wire.given_up.clear()
        wire.begin(self.objects, [first, second], [looks])
        self.tries.clear()
        table = LakeTable(self.handle, self.snapshot, pinned=False, spark=None)
        told = "success"
        try:
            table.upsert(row(2))
        except OutcomeUnknownError:
            told = "unknown"
        except LakeMergeError as error:
            told = f"refused ({error.code})"
        asked, sent = sum("/_delta_log/" in key for key in self.tries), wire.put_count
        found = [self.records()]
        wire.given_up.set()
        if wire.deliver():
            found.append(self.records())
        allowed = {"success": {1}, "unknown": {0, 1}}.get(told, {0})
        about = f"first put {first}; looks {looks}; second put {second}: {told}, {sent} PUTs"
        wrong = [
            f"{about}; {'at once' if not after else 'afterwards'} the record is there: {count}"
            for after, count in enumerate(found)
            if count not in allowed
        ]
        if sent != asked:
            wrong.append(f"{about}, for {asked} that the client was asked for")
        return wrong, sent > 1

    def records(self) -> int | str:
        """How often the record is there; or why the table cannot be read. A copy of the objects is read, so that
        no answer comes between."""
        here = self.folder / str(len(list(self.folder.iterdir())))
        for name, there in self.wire.objects.items():
            path = here / name.removeprefix("bucket/t/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(there.data)
        try:
            ids = LakeTable.open(here).to_arrow()["id"].to_pylist()
        except (LakeMergeError, OSError) as error:
            return repr(error)
        return ids.count(2) if ids.count(1) == 1 else f"the ids are {ids}"


def row(number: int) -> pa.Table:
    return pa.table({"id": [number], "v": [f"v{number}"]})


def played(stage: Stage, pairs: Sequence[tuple[Answer, Answer]], seconds: Sequence[Answer], one_in: int) -> list[str]:
    """Play each first put and each way to look, with one in so many of the second puts if there is one. All pairs of a
    look and a second put are played."""
    wrong = []
    for number, (first, looks) in enumerate(pairs):
        for second in seconds[number % one_in :: one_in]:
            problems, reached = stage.play(first, looks, second)
            wrong += problems
            if not reached:
                break  # the others would be the same
    return wrong


def told(wrong: list[str]) -> str:
    return f"{len(wrong)} combinations:\n" + "\n".join(islice(wrong, 12))
