from __future__ import annotations

import errno
import os
import pickle
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

from lakemerge.errors import DependencyMissingError, InputError, StoreError
from lakemerge.storage import LocalStore, Put, ReadOnlyStore, S3Store, Store, open_store
from lakemerge.storage.base import NothingCreatedError
from lakemerge.storage.clock import store_time_ms
from lakemerge.testing.store_suite import StoreSuite


def read_at(file: Any, size_bytes: int, start: int) -> bytes:
    # Untyped, as the stubs of pyarrow leave the offset out.
    return bytes(file.read_at(size_bytes, start))


class CheckThenWriteStore(LocalStore):
    """The mistake that the race is there to find."""

    def put_if_absent(self, path: str, data: bytes) -> Put:
        if self.stat(path) is not None:
            return Put.EXISTS
        time.sleep(0.01)
        self.put(path, data)
        return Put.CREATED


class TestLocalStore(StoreSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return LocalStore(tmp_path / "not yet" / "there=%20")


def test_the_race_finds_a_check_then_write_store(tmp_path: Path) -> None:
    class Short(StoreSuite):
        race_processes = 3
        race_paths = 5

    with pytest.raises(AssertionError, match=r"'created'.*'created'"):
        Short().test_the_race(CheckThenWriteStore(tmp_path))


def _names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_no_temporary_file_stays(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a", b"1")
    store.put_if_absent("a", b"2")
    store.put_if_absent("b", b"2")
    with store.open_output("c") as file:
        file.write(b"3")
        (temporary,) = [name for name in _names(tmp_path) if name not in ("a", "b")]
        assert temporary.startswith(".")
        assert [found.path for found in store.list("")] == ["a", "b"]
        with pytest.raises(InputError, match="reserved"):
            store.get(temporary)
    with pytest.raises(ValueError, match="stop"), store.open_output("d"):
        raise ValueError("stop")
    assert _names(tmp_path) == ["a", "b", "c"]


def test_a_root_that_was_seen_is_not_made_anew(tmp_path: Path) -> None:
    """Nor by a copy of the store on a host that has no such folder."""
    root, elsewhere = tmp_path / "there", tmp_path / "elsewhere"
    store = LocalStore(root)
    store.put("a/b", b"")
    reader = LocalStore(root)
    assert reader.stat("a/b") is not None
    os.rename(root, elsewhere)
    for seen in (store, reader, pickle.loads(pickle.dumps(store))):
        with pytest.raises(StoreError, match="there' is gone: the table was removed, got another name"):
            seen.put("a/c", b"")
        with pytest.raises(NothingCreatedError, match="there' is gone"):
            seen.put_if_absent("a/c", b"")
        with pytest.raises(StoreError, match="there' is gone"), seen.open_output("c"):
            raise AssertionError("it was opened")
        assert seen.stat("a/b") is None
        assert not root.exists()
    assert LocalStore(root).put_if_absent("a/c", b"") is Put.CREATED, "a store that has not seen it makes it"
    store.put("a/b", b"once more")  # the folder is there again
    assert reader.get("a/b") == b"once more"


def test_files_have_the_permissions_of_the_umask(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    before = os.umask(0o027)
    try:
        store.put("put", b"")
        store.put_if_absent("absent", b"")
        with store.open_output("output"):
            pass
    finally:
        os.umask(before)
    assert {name: (tmp_path / name).stat().st_mode & 0o777 for name in _names(tmp_path)} == {
        "put": 0o640,
        "absent": 0o640,
        "output": 0o640,
    }


def test_a_file_system_without_hard_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(_source: str, _target: str) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(StoreError, match="no hard links") as caught:
        LocalStore(tmp_path).put_if_absent("a", b"x")
    assert pickle.loads(pickle.dumps(caught.value)).path == str(tmp_path / "a")
    assert _names(tmp_path) == []


@pytest.mark.parametrize(
    ("happens", "error", "outcome"),
    [
        (False, errno.EIO, Put.UNKNOWN),
        *((False, code, Put.UNKNOWN) for code in (errno.ETIMEDOUT, errno.EINTR, errno.ENOTCONN, errno.ECONNABORTED)),
        *((False, code, Put.UNKNOWN) for code in (errno.EHOSTDOWN, errno.EREMOTEIO, errno.EAGAIN, errno.EPROTO)),
        (True, errno.EIO, Put.CREATED),
        (True, errno.EEXIST, Put.CREATED),
        (False, errno.EEXIST, Put.EXISTS),
    ],
)
def test_a_link_that_reports_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, happens: bool, error: int, outcome: Put
) -> None:
    really_link = os.link

    def link(source: str, target: str) -> None:
        if happens:
            really_link(source, target)
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "link", link)
    assert LocalStore(tmp_path).put_if_absent("a", b"x") is outcome
    assert _names(tmp_path) == (["a"] if happens else [])


def test_a_link_of_which_the_file_system_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal may be that of a repeated request, and then only a look at the file shows that the first was done."""

    def link(_source: str, _target: str) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def lstat(_path: str) -> NoReturn:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    store = LocalStore(tmp_path)
    store.put("first", b"x")
    monkeypatch.setattr(os, "link", link)
    with monkeypatch.context() as patched:
        patched.setattr(os, "lstat", lstat)
        assert store.put_if_absent("a", b"x") is Put.UNKNOWN


@pytest.mark.parametrize("call", ["unlink", "lstat", "rmdir"])
def test_a_time_limit_inside_of_a_call_that_may_fail_comes_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def end(*_: object, **__: object) -> NoReturn:
        raise TimeoutError("the limit")

    store = LocalStore(tmp_path)
    store.put("folder/a", b"x")
    if call == "rmdir":
        store.delete(["folder/a"])
    monkeypatch.setattr(os, call, end)
    work: Callable[[], object] = partial(store.put_if_absent, "folder/a", b"x")
    if call == "rmdir":
        work = partial(store.clean_up, before_ms=2**50, dry_run=False)
    with pytest.raises(TimeoutError, match="the limit"):
        work()


@pytest.mark.parametrize("call", ["link", "fsync", "mkdir"])
@pytest.mark.parametrize(
    ("code", "remedy"), [(errno.ENOSPC, "free some space"), (errno.EROFS, "read-only"), (errno.ENFILE, "try again")]
)
def test_a_file_that_was_surely_not_created_is_a_store_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int, remedy: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(StoreError, match=rf"new/a' was not created \({os.strerror(code)}\): .*{remedy}") as caught:
        LocalStore(tmp_path).put_if_absent("new/a", b"x")
    assert pickle.loads(pickle.dumps(caught.value)).facts == {"path": str(tmp_path / "new/a"), "errno": code}
    assert list(LocalStore(tmp_path).list("")) == []
    assert not any(names for _, _, names in os.walk(tmp_path))


class _Trace:
    """Calls of ``os`` that durability rests on, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self._fsync, self._link, self._replace, self._unlink = os.fsync, os.link, os.replace, os.unlink
        self.fail_folder_sync = False
        monkeypatch.setattr(os, "fsync", self.fsync)
        monkeypatch.setattr(os, "link", self.link)
        monkeypatch.setattr(os, "replace", self.replace)
        monkeypatch.setattr(os, "unlink", self.unlink)

    def fsync(self, descriptor: int) -> None:
        folder = os.path.isdir(f"/proc/self/fd/{descriptor}")
        self.calls.append("sync folder" if folder else "sync file")
        if folder and self.fail_folder_sync:
            raise OSError(errno.EIO, "Input/output error")
        self._fsync(descriptor)

    def link(self, source: str, target: str) -> None:
        self.calls.append("link")
        self._link(source, target)

    def replace(self, source: str, target: str) -> None:
        self.calls.append("replace")
        self._replace(source, target)

    def unlink(self, path: str) -> None:
        self.calls.append("unlink")
        self._unlink(path)


def test_bytes_are_synced_before_the_name_and_the_name_before_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    store.put("first", b"x")  # which also syncs the names of the folders above
    trace = _Trace(monkeypatch)
    assert store.put_if_absent("a", b"x") is Put.CREATED
    assert trace.calls == ["sync file", "link", "sync folder", "unlink"]
    trace.calls.clear()
    store.put("b", b"x")
    assert trace.calls[:3] == ["sync file", "replace", "sync folder"]
    trace.calls.clear()
    with store.open_output("c") as file:
        file.write(b"x")
    assert trace.calls[:3] == ["sync file", "replace", "sync folder"]
    trace.calls.clear()
    store.put("new/folder/d", b"x")
    assert trace.calls[:5] == ["sync folder", "sync folder", "sync file", "replace", "sync folder"]


def test_a_name_that_cannot_be_synced_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    store.put("first", b"x")
    _Trace(monkeypatch).fail_folder_sync = True
    assert store.put_if_absent("a", b"x") is Put.UNKNOWN
    assert _names(tmp_path) == ["a", "first"]


def test_a_folder_whose_name_cannot_be_synced_gets_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is created yet, so this is no unknown outcome."""
    _Trace(monkeypatch).fail_folder_sync = True
    with pytest.raises(StoreError, match="was not created"):
        LocalStore(tmp_path).put_if_absent("a", b"x")
    assert _names(tmp_path) == []


def test_links_that_leave_the_root_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "real").write_bytes(b"1")
    (root / "folder").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    (root / "inside").symlink_to(root / "real")
    (root / "loop").symlink_to(root)
    (root / "dangling").symlink_to(root / "missing")
    store = LocalStore(root)
    assert [(found.path, found.size_bytes) for found in store.list("")] == [("inside", 1), ("real", 1)]
    for path in ("folder/secret", "file"):
        for use in (store.get, store.stat, store.open_input, store.open_output):
            with pytest.raises(StoreError, match="symbolic link"):
                use(path)
        with pytest.raises(StoreError, match="symbolic link"):
            store.delete([path])
        with pytest.raises(StoreError, match="symbolic link"):
            store.put(path, b"x")
    with pytest.raises(StoreError, match="symbolic link"):
        store.list("folder")
    assert (outside / "secret").read_bytes() == b"secret"
    linked = tmp_path / "linked root"
    linked.symlink_to(root)
    assert LocalStore(linked).get("real") == b"1"


def test_folders_before_start_after_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    for path in ("a/1", "b/1", "b/2", "c/d/1"):
        store.put(path, b"x")
    scanned: list[str] = []
    really_scan = os.scandir

    def scan(folder: str) -> object:
        scanned.append(os.path.relpath(folder, tmp_path))
        return really_scan(folder)

    monkeypatch.setattr(os, "scandir", scan)
    assert [found.path for found in store.list("", start_after="b/1")] == ["b/2", "c/d/1"]
    assert scanned == [".", "b", "c", "c/d"]


def test_open_store_picks_by_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    spaced = tmp_path / "a b%20"
    for location, root in (
        (tmp_path, tmp_path),
        (str(tmp_path) + "/", tmp_path),
        ("relative/x", tmp_path / "relative/x"),
        ("~/x", tmp_path / "home/x"),
        (Path("~"), tmp_path / "home"),
        ("./~", tmp_path / "~"),
        ("day=1:2", tmp_path / "day=1:2"),
        (spaced.as_uri(), spaced),
        (f"file:{tmp_path}", tmp_path),
        (f"file://localhost{tmp_path}", tmp_path),
    ):
        store = open_store(location)
        assert type(store) is LocalStore
        assert store.url == str(root)
        assert pickle.loads(pickle.dumps(store)).url == store.url
    assert type(open_store("s3://bucket/prefix/")) is S3Store
    assert open_store("s3a://bucket/prefix/").url == "s3://bucket/prefix"
    assert type(open_store("memory://x")) is ReadOnlyStore


@pytest.mark.parametrize(
    "location",
    ["", "file://host/share", Path("s3://bucket/x"), "nosuchscheme://x", "s3://", "s3://b u/x"],
)
def test_open_store_refuses(location: str | Path) -> None:
    with pytest.raises(InputError):
        open_store(location)


def test_spark_paths_are_literal(tmp_path: Path) -> None:
    assert LocalStore(tmp_path / "a b").spark_url("c=%20/ü") == f"file://{tmp_path}/a b/c=%20/ü"
    assert open_store("s3://bucket/p q").spark_url("c=%20/ü") == "s3a://bucket/p q/c=%20/ü"


def test_a_name_too_long_to_be_there_is_a_missing_file(tmp_path: Path) -> None:
    """As damaged metadata may have it; the file system has an error of its own for it."""
    store = LocalStore(tmp_path)
    for path in ("x" * 2000, "folder/" + "é" * 300, "/".join(["x" * 200] * 40)):
        assert store.stat(path) is None
        with pytest.raises(FileNotFoundError):
            store.get(path)
        with pytest.raises(FileNotFoundError):
            store.open_input(path)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(DependencyMissingError, match=r"pip install lakemerge\[s3\]"):
        open_store("s3://bucket/x")


def test_any_other_url_is_read_only() -> None:
    import fsspec  # type: ignore[import-untyped]

    memory = fsspec.filesystem("memory")
    memory.pipe({"/lm-table/log/0": b"zero", "/lm-table/log/1": b"one", "/lm-table/log-x": b"x", "/lm-table/x/y": b"y"})
    try:
        store = open_store("memory://lm-table/")
        assert [(found.path, found.size_bytes) for found in store.list("")] == [
            ("log-x", 1),
            ("log/0", 4),
            ("log/1", 3),
            ("x/y", 1),
        ]
        assert [found.path for found in store.list("log", start_after="log/0")] == ["log/1"]
        assert list(store.list("missing")) == []
        assert list(store.list("log/0")) == []
        found = store.stat("log/1")
        assert found is not None
        assert abs(found.modified_ms - time.time() * 1000) < 60_000
        assert store.stat("log") is None
        assert store.stat("missing") is None
        assert store.get("log/1") == b"one"
        with store.open_input("log/1", size_bytes=3) as file:
            assert read_at(file, 2, 1) == b"ne"
        with pytest.raises(FileNotFoundError):
            store.get("missing")
        assert pickle.loads(pickle.dumps(store)).get("log/0") == b"zero"
        for write in (
            lambda: store.put_if_absent("a", b"x"),
            lambda: store.put("a", b"x"),
            lambda: store.delete(["log/0"]),
            lambda: store.open_output("a"),
            lambda: store.clean_up(before_ms=0, dry_run=True),
        ):
            with pytest.raises(StoreError, match="no put-if-absent we know of"):
                write()
    finally:
        memory.rm("/lm-table", recursive=True)


def test_a_store_that_cannot_be_reached_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def unloadable(url: str, **_: object) -> NoReturn:
        raise OSError("Unable to load libjvm\ndlopen(a) failed\ndlopen(b) failed")

    monkeypatch.setattr("fsspec.core.url_to_fs", unloadable)
    with pytest.raises(StoreError, match=r"Unable to load libjvm; it needs Java, libhdfs .* in CLASSPATH$"):
        open_store("hdfs://host/table")
    with pytest.raises(StoreError, match=r"Unable to load libjvm$"):
        open_store("ftp://host/table")


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    for url in ("ftp://user:hunter2@host/x", "s3://user:hunter2@bucket/x"):
        with pytest.raises(InputError) as caught:
            open_store(url)
        assert "hunter2" not in str(caught.value) + repr(caught.value.facts)


def test_a_clean_up_deletes_what_killed_writers_left(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a/b/file", b"x")
    store.put("empty/x", b"x")
    store.delete(["empty/x"])
    now_ms = store_time_ms(store)
    for name, age_s in (("a/b/.lakemerge-tmp-old", 100), ("a/.lakemerge-tmp-young", 10), ("a/b/.other", 100)):
        (tmp_path / name).write_bytes(b"left")
        os.utime(tmp_path / name, ns=((now_ms - age_s * 1000) * 1_000_000,) * 2)
    os.utime(tmp_path / "empty", ns=((now_ms - 100_000) * 1_000_000,) * 2)
    for dry_run in (True, False):
        found = store.clean_up(before_ms=now_ms - 50_000, dry_run=dry_run)
        assert [(file.path, file.size_bytes, file.modified_ms) for file in found] == [
            ("a/b/.lakemerge-tmp-old", 4, now_ms - 100_000)
        ]
        assert (tmp_path / "a/b/.lakemerge-tmp-old").exists() is dry_run
        assert (tmp_path / "empty").exists() is dry_run
    left = sorted(str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file())
    assert left == ["_lakemerge/.clock", "a/.lakemerge-tmp-young", "a/b/.other", "a/b/file"]
