"""A table is removed and made anew at each call that an operation of the old one makes. The new table stays whole.

Whatever the object of the old table still does, it deletes and overwrites nothing of the new one: no commit,
checkpoint, hint or position of a consumer, whose names every table has. Another engine reads the new table as before.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import deltalake
import pytest

from lakemerge import LakeMergeError, LakeTable, Settings
from lakemerge.testing.faults import Call, Fault
from tests.property.effort import some
from tests.unit.faults import create, frame, open_over, rows_of, state_of

QUICK = {
    "lakemerge.maintenance": "off",
    "delta.checkpointInterval": "4",
    "delta.logRetentionDuration": "interval 1 hour",
    "delta.deletedFileRetentionDuration": "interval 1 hour",
}
ONE = Settings(threads=1)
CHANGES = frozenset({"put", "put_if_absent", "delete", "delete_exact", "replace_exact", "publish", "open_output"})


@dataclass(frozen=True)
class Deed:
    name: str
    do: Callable[[LakeTable], object]

    def __str__(self) -> str:
        return self.name


def _checkpointed(table: LakeTable) -> None:
    for o in range(20, 24):  # one of these versions gets a checkpoint
        table.upsert(frame([(1, o, "old")]))


DEEDS = [
    Deed("append", _checkpointed),
    Deed("checkpoint", lambda table: table.opened.handle.log.checkpoint(table.opened.view.snapshot)),
    Deed("compaction", lambda table: table.compact()),
    Deed("log compaction", lambda table: table.compact_logs()),
    Deed("vacuum", lambda table: table.vacuum(dry_run=False)),
    Deed("restore", lambda table: table.restore(version=table.version - 1)),
    Deed("consumer moves", lambda table: table.consumers.advance("c", table.version)),
    Deed("consumer goes", lambda table: table.consumers.drop("c")),
    Deed("consumer comes", lambda table: table.consumers.register("d")),
]


def _old(path: Path) -> None:
    """Old enough for a vacuum and a clean-up of its log."""
    table = create(path, properties=QUICK, settings=ONE)
    table.consumers.register("c")
    for o in range(9):
        table.upsert(frame([(o % 3, o, "old")]))
        if o % 4 == 3:
            table.compact()
    table.consumers.advance("c", table.version)
    before = time.time() - 7200
    for file in path.rglob("*"):
        os.utime(file, (before, before))
    table.upsert(frame([(7, 1, "old")]))


def _new(path: Path) -> None:
    """More versions than the old table has, with checkpoints and consumers of the same names."""
    table = create(path, properties=QUICK, settings=ONE)
    for name in ("c", "d"):
        table.consumers.register(name)
    for o in range(30):
        table.upsert(frame([(100 + o % 5, o, "new")]))
    for name in ("c", "d"):
        table.consumers.advance(name, 20)


def _by_another_engine(path: Path) -> tuple[int, list[str]]:
    table = deltalake.DeltaTable(path)
    return table.version(), sorted(Path(uri).name for uri in table.file_uris())


@pytest.mark.parametrize("deed", DEEDS, ids=str)
def test_a_new_table_stays_whole(deed: Deed, tmp_path: Path) -> None:
    _old(tmp_path / "old")
    _new(tmp_path / "new")
    expected = state_of(tmp_path / "new")
    seen = _by_another_engine(tmp_path / "new")
    files = {
        file.relative_to(tmp_path / "new"): file.read_bytes()
        for file in (tmp_path / "new").rglob("*")
        if file.is_file()
    }
    shutil.copytree(tmp_path / "old", tmp_path / "count")
    table, store = open_over(tmp_path / "count", settings=ONE)
    deed.do(table)
    path = tmp_path / "t"
    places = [
        (number, after)
        for number, call in enumerate(store.calls, start=1)
        for after in ((False, True) if call.method in CHANGES else (False,))
    ]
    assert len(places) >= 5
    for number, after in some(places):
        shutil.copytree(tmp_path / "old", path)

        def swap(call: Call) -> None:
            shutil.rmtree(path)
            shutil.copytree(tmp_path / "new", path)

        table, _ = open_over(path, Fault(at=number, after=after, action=swap), settings=ONE)
        with contextlib.suppress(LakeMergeError, FileNotFoundError):
            deed.do(table)
        about = f"{number} {store.calls[number - 1]}, {'after' if after else 'before'} its effect"
        changed = [
            name for name, data in files.items() if not (path / name).is_file() or (path / name).read_bytes() != data
        ]
        assert not changed, about
        assert _by_another_engine(path) == seen, about
        assert LakeTable.check(path).ok, about
        assert state_of(path) == expected, about
        again = LakeTable.open(path)
        again.consumers.advance("c", 21)
        for o in range(40, 44):
            again.upsert(frame([(100, o, "newer")]))
        assert (100, 43, "newer") in rows_of(again.to_arrow()), about
        shutil.rmtree(path)
