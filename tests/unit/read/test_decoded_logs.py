"""What is asked of the store for the logs of version after version."""

from __future__ import annotations

import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa

from lakemerge import LakeTable, Settings
from lakemerge.delta import DeltaLog
from lakemerge.handle import Handle
from lakemerge.storage import LocalStore
from mergers import default_registry


class Listening(LocalStore):
    """Notes which whole files are fetched."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.fetched: list[str] = []

    def get(self, path: str) -> bytes:
        self.fetched.append(path)
        return super().get(path)


class Together(LocalStore):
    """Gives block indexes two at a time, each once the other is asked for too."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.both = threading.Barrier(2)

    def get(self, path: str) -> bytes:
        if path.endswith("-index.parquet"):
            self.both.wait(timeout=60)
        return super().get(path)


class Overtaken(LocalStore):
    """Another thread plans a read of the table while a block index is fetched."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path

    def get(self, path: str) -> bytes:
        if path.endswith("-index.parquet"):
            planned = []
            other = threading.Thread(
                target=lambda: planned.append(LakeTable.open(self.path).opened.view.file_slices), daemon=True
            )
            other.start()
            other.join(timeout=60)
            assert planned, "the plan of one table waits for the store of another"
        return super().get(path)


def stored_in(store: LocalStore, settings: Settings) -> LakeTable:
    handle = Handle(store, DeltaLog(store), default_registry(), settings)
    return LakeTable(handle, handle.log.snapshot(), pinned=False, spark=None)


def test_indexes_are_fetched_side_by_side(tmp_path: Path) -> None:
    settings = Settings(inline_blocks=1)
    table = LakeTable.create(tmp_path, "k BIGINT, v STRING", key=["k"], buckets=4, settings=settings)
    for value in ("base", "one", "two"):
        table.upsert(pa.table({"k": range(20), "v": [value] * 20}))
    assert stored_in(Together(tmp_path), settings).to_arrow().column("v").to_pylist() == ["two"] * 20


def test_a_plan_does_not_wait_for_that_of_another_table(tmp_path: Path) -> None:
    settings = Settings(inline_blocks=1)
    table = LakeTable.create(tmp_path, "k BIGINT, v STRING", key=["k"], buckets=4, settings=settings)
    for value in ("base", "one"):
        table.upsert(pa.table({"k": range(20), "v": [value] * 20}))
    assert len(stored_in(Overtaken(tmp_path), settings).opened.view.file_slices) == 4


def test_threads_that_read_a_version_plan_it_once(tmp_path: Path) -> None:
    settings = Settings(inline_blocks=1)
    table = LakeTable.create(tmp_path, "k BIGINT, v STRING", key=["k"], buckets=4, settings=settings)
    for value in ("base", "one"):
        table.upsert(pa.table({"k": range(20), "v": [value] * 20}))
    everybody = threading.Barrier(4)

    class Slow(Listening):
        def get(self, path: str) -> bytes:
            time.sleep(0.2)  # the others come to ask the same
            return super().get(path)

    store = Slow(tmp_path)
    view = stored_in(store, settings).opened.view
    store.fetched.clear()

    def plan() -> object:
        everybody.wait(timeout=60)
        return view.file_slices

    with ThreadPoolExecutor(4) as pool:
        found = [asked.result() for asked in [pool.submit(plan) for _ in range(4)]]
    assert all(file_slices is found[0] for file_slices in found)
    assert len(store.fetched) == 1


def test_logs_are_decoded_once(tmp_path: Path) -> None:
    """Neither a read after each commit nor the commit of a compaction fetches the indexes of earlier ones again."""
    settings = Settings(inline_blocks=1)
    LakeTable.create(tmp_path, "k BIGINT, v STRING", key=["k"], buckets=4, settings=settings)
    store = Listening(tmp_path)
    table = stored_in(store, settings)
    frame = pa.table({"k": range(20), "v": ["x"] * 20})
    for _ in range(4):
        table.upsert(frame)
        assert table.to_arrow().num_rows == 20
    assert [path.endswith("-index.parquet") for path in store.fetched].count(True) == 3
    store.fetched.clear()
    table.compact()
    # Its plan reads the sizes of blocks from each, and nothing reads them again.
    assert [path.endswith("-index.parquet") for path in store.fetched].count(True) == 3
    sent = pickle.loads(pickle.dumps(table.opened.handle.decoded))
    assert not sent._known
