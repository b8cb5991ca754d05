from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemerge.storage import LocalStore, Put, Store
from lakemerge.testing.counting import CountingStore
from lakemerge.testing.store_suite import StoreSuite


def read_at(file: Any, size_bytes: int, start: int) -> bytes:
    # Untyped, as the stubs of pyarrow leave the offset out.
    return bytes(file.read_at(size_bytes, start))


class TestCountingStore(StoreSuite):
    """Counting changes nothing."""

    race_processes = 2
    race_paths = 3

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return CountingStore(LocalStore(tmp_path))


@pytest.fixture
def store(tmp_path: Path) -> CountingStore:
    return CountingStore(LocalStore(tmp_path))


def test_each_call_is_counted_by_name(store: CountingStore) -> None:
    assert store.put_if_absent("log/0", b"123") is Put.CREATED
    assert store.put_if_absent("log/0", b"1234") is Put.EXISTS
    store.put("a", b"12345")
    store.get("a")
    store.get("log/0")
    with pytest.raises(FileNotFoundError):
        store.get("missing")
    store.stat("a")
    assert len(list(store.list(""))) == 2
    assert len(list(store.list("log", start_after="log/0"))) == 0
    store.delete(["a", "missing"])
    counts = store.counts()
    assert counts.calls == {"put_if_absent": 2, "put": 1, "get": 3, "stat": 1, "list": 2, "delete": 1}
    assert counts.calls["open_input"] == 0
    assert (counts.bytes_written, counts.bytes_read) == (3 + 4 + 5, 5 + 3)
    assert (counts.files_listed, counts.files_deleted) == (2, 2)
    store.reset()
    assert store.counts().calls == {}
    assert counts.bytes_read == 8


def test_reads_and_writes_of_open_files_are_counted(store: CountingStore) -> None:
    with store.open_output("file") as output:
        output.write(b"12345")
        output.write(b"678")
    counts = store.counts()
    assert counts.calls == {"open_output": 1, "write": 2}
    assert (counts.bytes_written, counts.bytes_read) == (8, 0)
    store.reset()
    with store.open_input("file") as file:
        assert read_at(file, 3, 2) == b"345"
        assert file.read(4) == b"6781"[:3]
    counts = store.counts()
    assert counts.calls == {"open_input": 1, "read": 2}
    assert (counts.bytes_written, counts.bytes_read) == (0, 6)


def test_one_column_of_a_parquet_file_costs_its_chunk_and_the_footer(store: CountingStore) -> None:
    names = [f"{number:020x}" for number in range(100_000)]
    table = pa.table({"name": names, "id": range(100_000)})
    with store.open_output("data") as output:
        pq.write_table(table, output, compression="none", use_dictionary=False, row_group_size=100_000)
    found = store.stat("data")
    assert found is not None
    assert store.counts().bytes_written == found.size_bytes
    store.reset()
    with store.open_input("data") as file:
        chunk = pq.ParquetFile(file).metadata.row_group(0).column(1)
        pq.ParquetFile(file).read(columns=["id"])
    read = store.counts().bytes_read
    # Two footers of at most 64 KiB each, as pyarrow asks for them.
    assert chunk.total_compressed_size <= read <= chunk.total_compressed_size + 2 * (64 << 10)
    assert read < found.size_bytes / 2


def test_a_pickle_counts_for_itself(store: CountingStore) -> None:
    store.put("a", b"x")
    other = pickle.loads(pickle.dumps(store))
    assert other.get("a") == b"x"
    assert other.counts().calls == {"get": 1}
    assert store.counts().calls == {"put": 1}
