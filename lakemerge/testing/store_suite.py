"""The contract of stores as tests: subclass :class:`StoreSuite` and give it a ``store`` fixture.

The race starts processes, so the store's class must be importable and its instances picklable.
"""

from __future__ import annotations

import multiprocessing
import pickle
import threading
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemerge._internal.parquet import ParquetFile
from lakemerge.errors import InputError
from lakemerge.storage.base import FileStat, Put, Store
from lakemerge.storage.clock import store_time_ms

__all__ = ["StoreSuite"]

UNCLEAN = ("", "/a", "a/", "a//b", "./a", "a/./b", "../a", "a/../b", "a/..", "s3://b/a", "file:a", "a\\b", "a\0b")

STRANGE = (
    "plain.json",
    "with space/two  spaces.bin",
    "ünï/日本語-😀.bin",
    "100%/50%25 off.bin",
    "country=NO/day=2024-01-01/a=b.bin",
    "plus+and&amp;.bin",
    "q?uestion #hash.bin",
    "_hidden/.dot.bin",
    "c/time 12:30:00.bin",
    "quote's/[brackets]{braces}*.bin",
)

_DEADLINE_S = 120


class StoreSuite:
    """The contract of :class:`lakemerge.storage.base.Store`. Each test gets an empty, writable store."""

    race_processes = 6
    race_paths = 30
    race_in_threads = False
    """Whether threads run the race, for a store that lives in one process."""

    @pytest.fixture
    def store(self) -> Store:
        raise AssertionError("a subclass of StoreSuite overrides this fixture with an empty, writable store")

    def test_what_is_put_can_be_read(self, store: Store) -> None:
        for number, path in enumerate(STRANGE):
            put = (store.put, store.put_if_absent)[number % 2]
            put(path, f"content of {path}".encode())
        for path in STRANGE:
            content = f"content of {path}".encode()
            found = store.stat(path)
            assert store.get(path) == content
            assert found is not None
            assert (found.path, found.size_bytes) == (path, len(content))
            with store.open_input(path) as file:
                assert file.read() == content
        assert [file.path for file in store.list("")] == sorted(STRANGE, key=str.encode)

    def test_a_missing_file(self, store: Store) -> None:
        store.put("folder/file", b"x")
        for missing in ("missing", "folder", "folder/missing", "missing/file"):
            assert store.stat(missing) is None
            with pytest.raises(FileNotFoundError):
                store.get(missing)
            with pytest.raises(FileNotFoundError):
                store.open_input(missing)
        with pytest.raises(FileNotFoundError):  # by the first read at the latest
            store.open_input("missing", size_bytes=3).read()

    def test_put_replaces(self, store: Store) -> None:
        for content in (b"first, and longer", b"second", b""):
            store.put("file", content)
            assert store.get("file") == content
            assert [file.size_bytes for file in store.list("")] == [len(content)]

    def test_put_if_absent_keeps_what_is_there(self, store: Store) -> None:
        assert store.put_if_absent("log/0.json", b"first") is Put.CREATED
        assert store.put_if_absent("log/0.json", b"second") is Put.EXISTS
        assert store.put_if_absent("log/0.json", b"first") is Put.EXISTS
        assert store.get("log/0.json") == b"first"
        store.put("log/1.json", b"by put")
        assert store.put_if_absent("log/1.json", b"second") is Put.EXISTS
        assert store.put_if_absent("log/empty", b"") is Put.CREATED
        assert store.put_if_absent("log/empty", b"x") is Put.EXISTS
        assert [file.path for file in store.list("")] == ["log/0.json", "log/1.json", "log/empty"]

    def test_put_if_absent_after_delete(self, store: Store) -> None:
        assert store.put_if_absent("file", b"first") is Put.CREATED
        store.delete(["file"])
        assert store.put_if_absent("file", b"second") is Put.CREATED
        assert store.get("file") == b"second"

    def test_a_token_tells_two_writes_of_one_size_apart(self, store: Store) -> None:
        tokens = []
        for content in (b"first!", b"second"):
            store.delete(["file"])
            assert store.put_if_absent("file", content) is Put.CREATED
            (listed,) = store.list("")
            assert listed.is_same(store.stat("file"))
            tokens.append(listed.token)
        assert tokens == ["", ""] or tokens[0] != tokens[1]

    def test_modified_is_in_milliseconds_of_today(self, store: Store) -> None:
        before_ms = time.time() * 1000
        store.put("file", b"x")
        found = store.stat("file")
        assert found is not None
        # S3 keeps whole seconds; the store's clock may differ from ours a little.
        assert abs(found.modified_ms - before_ms) < 60_000
        # Some S3 servers list milliseconds, and tell seconds of one object.
        (listed,) = store.list("")
        assert abs(listed.modified_ms - found.modified_ms) < 1000

    def test_list_is_recursive_and_sorted_by_bytes(self, store: Store) -> None:
        # "-" and "." sort before "/", "0" after it; "B" before "a"; "\uff5e" before an emoji only as bytes.
        expected = ["B", "a-b", "a.b/c", "a/b", "a/b-c", "a/b/c", "a0", "é", "\uff5e", "😀"]
        for path in reversed(expected):
            if path != "a/b":
                store.put(path, path.encode())
        expected.remove("a/b")  # a file system cannot hold the file a/b and the folder a/b
        assert [file.path for file in store.list("")] == expected
        assert [file.path for file in store.list("a")] == ["a/b-c", "a/b/c"]
        assert [file.path for file in store.list("a/b")] == ["a/b/c"]
        assert [file.size_bytes for file in store.list("")] == [len(path.encode()) for path in expected]
        for folder in ("missing", "a/b/c", "a/missing", "A"):
            assert list(store.list(folder)) == []

    def test_folders_are_those_with_files(self, store: Store) -> None:
        for path in ("shop/orders/_delta_log/0.json", "shop/b.txt", "shop/é/x", "a b/c/d", "zzz"):
            store.put(path, b"x")
        assert list(store.folders("")) == ["a b", "shop"]
        assert list(store.folders("shop")) == ["orders", "é"]
        for folder in ("missing", "zzz", "shop/b.txt", "sho"):
            assert list(store.folders(folder)) == []
        store.delete(["shop/orders/_delta_log/0.json", "a b/c/d"])
        store.delete_empty_folders("shop")
        store.delete_empty_folders("a b")
        assert list(store.folders("")) == ["shop"]
        assert list(store.folders("shop")) == ["é"]
        assert store.get("shop/é/x") == b"x"

    def test_list_start_after(self, store: Store) -> None:
        paths = ["log/00.json", "log/01.json", "log/01/part", "log/02.json", "log/x/1", "log/x/2", "zzz"]
        for path in paths:
            store.put(path, b"x")
        marks = [
            *paths,
            "",
            "log",
            "log/",
            "log/01",
            "log/01/",
            "log/01.jsoo",
            "log/x",
            "log/x/",
            "log/x/11",
            "m",
            "zzzz",
        ]
        for mark in marks:
            for folder in ("", "log", "log/x"):
                below = [path for path in paths if path.startswith(f"{folder}/" if folder else "") and path > mark]
                assert [file.path for file in store.list(folder, start_after=mark)] == below, (folder, mark)

    def test_delete_passes_over_what_is_missing(self, store: Store) -> None:
        for path in ("a", "b/c", "b/d"):
            store.put(path, b"x")
        store.delete(["b/c", "missing", "missing/folder/file", "a", "b"])
        store.delete(["a"])
        store.delete([])
        assert [file.path for file in store.list("")] == ["b/d"]

    def test_exact_deletions_and_replacements(self, store: Store) -> None:
        """Only the very file that was listed is deleted or replaced, and not what was written under its name since."""
        for path in ("log/0", "log/1", "log/2", "log/3"):
            store.put(path, b"old of " + path.encode())
        listed = {file.path: file for file in store.list("log")}
        time.sleep(0.01)
        store.put("log/1", b"another, of another size")
        store.delete(["log/2"])
        store.put("log/3", b"new of log/3")  # of the same size
        left = store.delete_exact([*listed.values()])
        assert [file.path for file in left] == ["log/1", "log/3"]
        assert [file.path for file in store.list("log")] == ["log/1", "log/3"]
        assert (store.get("log/1"), store.get("log/3")) == (b"another, of another size", b"new of log/3")
        assert store.delete_exact([]) == ()
        for path, file in listed.items():
            assert not store.replace_exact(file, b"x"), path
        assert [file.path for file in store.list("log")] == ["log/1", "log/3"]
        present = store.stat("log/1")
        assert present is not None
        assert store.replace_exact(present, b"replaced")
        assert store.get("log/1") == b"replaced"
        assert not store.replace_exact(present, b"once more")
        assert store.get("log/1") == b"replaced"

    def test_a_sync_changes_nothing(self, store: Store) -> None:
        for path in ("a", "folder/b", "folder/inside/c"):
            store.put(path, path.encode())
        before = list(store.list(""))
        store.sync(["folder/inside/c", "a", "folder/b"])
        store.sync([])
        assert list(store.list("")) == before

    def test_a_clean_up_leaves_what_is_written(self, store: Store) -> None:
        """Finished files stay, however old. A file that is being written stays if it is young."""
        store.put("folder/file", b"x")
        later_ms = store_time_ms(store) + 60_000
        assert store.clean_up(before_ms=later_ms, dry_run=False) == ()
        with store.open_output("folder/large") as file:
            file.write(b"x" * (17 << 20))
            assert store.clean_up(before_ms=0, dry_run=False) == ()
        assert store.get("folder/large") == b"x" * (17 << 20)
        store.delete(["folder/large"])
        assert [file.path for file in store.list("folder")] == ["folder/file"]

    def test_the_time_is_that_of_new_files(self, store: Store) -> None:
        store.put("before", b"x")
        now_ms = store_time_ms(store)
        store.put("after", b"x")
        before, after = store.stat("before"), store.stat("after")
        assert before is not None
        assert after is not None
        assert before.modified_ms <= now_ms <= after.modified_ms

    def test_unclean_paths_are_refused_and_nothing_is_written(self, store: Store) -> None:
        for path in UNCLEAN:
            for use in (
                store.get,
                store.stat,
                store.open_input,
                store.open_output,
                store.spark_url,
                lambda path: store.put(path, b"x"),
                lambda path: store.put_if_absent(path, b"x"),
                lambda path: store.delete(["clean", path]),
                lambda path: store.delete_exact([FileStat(path, 1, 1, "x")]),
                lambda path: store.replace_exact(FileStat(path, 1, 1, "x"), b"x"),
                lambda path: store.sync(["clean", path]),
            ):
                with pytest.raises(InputError):
                    use(path)
            if path:  # the root may be listed
                with pytest.raises(InputError):
                    store.list(path)
        assert list(store.list("")) == []

    def test_an_output_appears_whole_when_it_ends(self, store: Store) -> None:
        with store.open_output("folder/file") as file:
            file.write(b"one, ")
            file.write(pa.py_buffer(b"two"))
            assert store.stat("folder/file") is None
            assert list(store.list("")) == []
        assert store.get("folder/file") == b"one, two"
        with store.open_output("folder/empty"):
            pass
        assert store.get("folder/empty") == b""
        with store.open_output("folder/closed") as file:
            file.write(b"closed early")
            file.close()
            assert store.stat("folder/closed") is None
        assert store.get("folder/closed") == b"closed early"
        assert [file.path for file in store.list("")] == ["folder/closed", "folder/empty", "folder/file"]

    @pytest.mark.parametrize("size_bytes", [0, 10, 40 << 20])
    def test_an_output_that_fails_leaves_nothing(self, store: Store, size_bytes: int) -> None:
        for failure in (RuntimeError("stop"), KeyboardInterrupt()):
            with pytest.raises(type(failure)), store.open_output("folder/file") as file:
                file.write(b"x" * size_bytes)
                if size_bytes:
                    file.close()
                raise failure
        assert store.stat("folder/file") is None
        assert list(store.list("")) == []
        assert store.put_if_absent("folder/file", b"x") is Put.CREATED

    def test_a_large_file(self, store: Store) -> None:
        block = bytes(range(256)) * 4096  # 1 MiB
        with store.open_output("large") as file:
            for number in range(36):
                file.write(number.to_bytes(4, "big"))
                file.write(block)
        size_bytes = 36 * (4 + len(block))
        found = store.stat("large")
        assert found is not None
        assert found.size_bytes == size_bytes
        for known in (None, size_bytes):
            with store.open_input("large", size_bytes=known) as file:
                assert file.size() == size_bytes
                for number in (35, 0, 17):
                    start = number * (4 + len(block))
                    assert _read_at(file, start, 4 + len(block)) == number.to_bytes(4, "big") + block
                    assert _read_at(file, start + 1, 3) == number.to_bytes(4, "big")[1:]
                file.seek(-5, 2)
                assert file.read(100) == block[-5:]
                assert file.read(1) == b""
        assert store.put_if_absent("copy", store.get("large")) is Put.CREATED
        assert store.get("copy") == store.get("large")

    def test_parquet_goes_through(self, store: Store) -> None:
        table = pa.table({"id": range(50_000), "name": [f"name {number % 97}" for number in range(50_000)]})
        with store.open_output("data.parquet") as file:
            pq.write_table(table, file, row_group_size=10_000)
        with store.open_input("data.parquet") as file:
            assert ParquetFile(file).read().equals(table)
        with store.open_input("data.parquet") as file:
            part = ParquetFile(file).read_row_groups([3], columns=["name"])
        assert part.equals(table.slice(30_000, 10_000).select(["name"]))

    def test_a_pickled_store_is_the_same_store(self, store: Store) -> None:
        store.put("before", b"1")
        other = pickle.loads(pickle.dumps(store))
        assert other.url == store.url
        assert other.get("before") == b"1"
        assert other.put_if_absent("after", b"2") is Put.CREATED
        assert store.put_if_absent("after", b"3") is Put.EXISTS
        assert store.get("after") == b"2"

    def test_the_race(self, store: Store) -> None:
        """Many processes create the same files at once: one succeeds for each, and its bytes are there."""
        folder = uuid.uuid4().hex
        paths = [f"{folder}/{number:020}.json" for number in range(self.race_paths)]
        race = _race_in_threads if self.race_in_threads else _race
        outcomes = race(store, paths, self.race_processes)
        assert [file.path for file in store.list(folder)] == paths
        for number, path in enumerate(paths):
            answers = [outcomes[process][number] for process in range(self.race_processes)]
            assert Counter(answers) == {"created": 1, "exists": self.race_processes - 1}, f"{path}: {answers}"
            assert store.get(path) == _race_content(answers.index("created"), path)


def _read_at(file: Any, start: int, size_bytes: int) -> bytes:
    # Untyped, as the stubs of pyarrow leave the offset out.
    return bytes(file.read_at(size_bytes, start))


def _race_content(process: int, path: str) -> bytes:
    # The contents have different lengths, so that a mixture of two would show.
    return f"{process} created {path}\n".encode() * (100 + process)


def _race(store: Store, paths: Sequence[str], processes: int) -> dict[int, list[str]]:
    """Number of the process -> its outcome for each path. All processes request a path at the same time."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(processes)
    results: SimpleQueue[tuple[int, list[str]]] = context.SimpleQueue()
    runners = [
        context.Process(target=_racer, args=(store, paths, process, barrier, results)) for process in range(processes)
    ]
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join(_DEADLINE_S)
    for runner in runners:
        if runner.is_alive():
            runner.kill()
            runner.join()
    assert [runner.exitcode for runner in runners] == [0] * processes
    return dict(results.get() for _ in runners)


def _race_in_threads(store: Store, paths: Sequence[str], racers: int) -> dict[int, list[str]]:
    barrier = threading.Barrier(racers)
    outcomes: dict[int, list[str]] = {}

    def run(racer: int) -> None:
        store.stat(paths[0])  # connects
        for path in paths:
            barrier.wait(_DEADLINE_S)
            outcomes.setdefault(racer, []).append(store.put_if_absent(path, _race_content(racer, path)).value)

    runners = [threading.Thread(target=run, args=(racer,)) for racer in range(racers)]
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join(_DEADLINE_S)
    return outcomes


def _racer(
    store: Store,
    paths: Sequence[str],
    process: int,
    barrier: Barrier,
    results: SimpleQueue[tuple[int, list[str]]],
) -> None:
    store.stat(paths[0])  # connects
    answers = []
    for path in paths:
        barrier.wait(_DEADLINE_S)
        answers.append(store.put_if_absent(path, _race_content(process, path)).value)
    results.put((process, answers))
