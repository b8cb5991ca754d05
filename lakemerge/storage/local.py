"""A table in a folder of a POSIX file system, local or mounted.

A file appears under its name whole and synced: it is first written to a hidden sibling, which is then linked or
renamed. The names of the folders above it are synced, too, whoever made them. Put-if-absent links, because ``link``
fails atomically if the name is taken. Hidden siblings that a killed
process left behind are not part of the table, and are never listed.

A store that has seen its root never makes it anew. Whoever still has a table that was removed, or got another name,
leaves nothing at its old place; and a Spark executor whose host does not share the folder writes nothing to its own
disk.

Symbolic links: the root may be one. Below it, a path that leads out of the root is refused;
:meth:`LocalStore.list` passes over links that leave the root and over links to folders.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

import pyarrow as pa

from lakemerge.errors import InputError, StoreError
from lakemerge.storage.base import FileStat, NothingCreatedError, Put, Store, check_path, is_own_failure

__all__ = ["LocalStore"]

_TEMPORARY_PREFIX = ".lakemerge-tmp-"
"""Hidden from Spark and Delta by the dot, and short, so that long file names stay possible."""

_NO_HARD_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV})

_REFUSALS = _NO_HARD_LINKS | {
    *(errno.EACCES, errno.EDQUOT, errno.EINVAL, errno.ELOOP, errno.EMLINK, errno.ENAMETOOLONG, errno.ENFILE),
    *(errno.ENOENT, errno.ENOMEM, errno.ENOSPC, errno.ENOTDIR, errno.EROFS),
}
"""Errors by which a file system says that it made no link. After any other, such as EIO, EINTR or a lost connection,
the server of a network file system may have carried out the request, or may still do so."""

_REMEDIES = {
    errno.ENOSPC: "free some space and try again",
    errno.EDQUOT: "free some of the quota and try again",
    errno.EROFS: "the file system is mounted read-only",
    errno.EACCES: "this user may not write in that folder",
    errno.EPERM: "this user may not write in that folder",
}

_MOST_NAMES = 10_000
_durable_names: dict[str, tuple[int, int]] = {}
"""Path of a folder -> device and inode of the folder whose name this process synced there."""

_NOT_A_FILE = (FileNotFoundError, IsADirectoryError, NotADirectoryError)

_T = TypeVar("_T")


class LocalStore(Store):
    """See the module docstring. Errors of the operating system (no permission, no space) are
    raised as they are, by :meth:`put_if_absent` as :class:`NothingCreatedError` where they prove that; none of them
    leaves anything visible."""

    can_move = True

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = os.path.abspath(os.fspath(root))
        self._has_seen_root = False

    def __repr__(self) -> str:
        return f"LocalStore({self._root!r})"

    @property
    def url(self) -> str:
        return self._root

    def spark_url(self, path: str) -> str:
        return "file://" + os.path.join(self._root, check_path(path))

    def put_if_absent(self, path: str, data: bytes) -> Put:
        target = self._locate(path)
        try:
            with self._temporary_for(target) as temporary:
                _write_synced(temporary, data)
                outcome = _link(temporary, target)
                if outcome is Put.CREATED:
                    try:
                        _sync_folder(os.path.dirname(target))
                    except OSError as error:
                        if not is_own_failure(error):
                            raise
                        # Others may have seen the file, so it cannot be taken back. But it is not surely on disk yet.
                        return Put.UNKNOWN
                return outcome
        except OSError as error:
            if not is_own_failure(error):
                raise
            raise _not_created(error, target) from error

    def put(self, path: str, data: bytes) -> None:
        target = self._locate(path)
        with self._temporary_for(target) as temporary:
            _write_synced(temporary, data)
            _rename(temporary, target)

    def get(self, path: str) -> bytes:
        def read(target: str) -> bytes:
            with open(target, "rb") as file:
                return file.read()

        return _of_file(read, self._locate(path))

    def stat(self, path: str) -> FileStat | None:
        try:
            found = _of_file(os.stat, self._locate(path))
        except FileNotFoundError:
            return None
        return _file_stat(path, found) if stat.S_ISREG(found.st_mode) else None

    def list(self, folder: str, *, start_after: str = "") -> Iterator[FileStat]:
        top = self._locate(folder) if folder else self._root
        return self._walk(top, f"{folder}/" if folder else "", os.fsencode(start_after))

    def folders(self, folder: str) -> Sequence[str]:
        try:
            with os.scandir(self._locate(folder) if folder else self._root) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir())
        except _NOT_A_FILE:
            return ()

    def delete_empty_folders(self, folder: str) -> None:
        top = self._locate(folder) if folder else self._root
        for place, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):  # it has files
                os.rmdir(place)
        _sync_folders([top])

    def move(self, root: str | os.PathLike[str]) -> None:
        """Give the root another name, in one step, with all that is in it.

        :raises FileExistsError: the name is taken by anything but an empty folder.
        :raises FileNotFoundError: there is no root.
        """
        target = os.path.abspath(os.fspath(root))
        _make_folders(os.path.dirname(target))
        try:
            os.rename(self._root, target)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target) from error
            raise
        for folder in {os.path.dirname(target), os.path.dirname(self._root)}:
            _sync_folder(folder)

    def delete(self, paths: Sequence[str]) -> None:
        targets = [self._locate(path) for path in paths]
        for target in targets:
            with contextlib.suppress(*_NOT_A_FILE):
                os.unlink(target)
        _sync_folders(targets)

    def sync(self, paths: Sequence[str]) -> None:
        """On a file system that several hosts share, this host's sync also stands for what other hosts wrote and
        closed, as on NFS."""
        targets = [self._locate(path) for path in paths]
        for target in targets:
            _of_file(_sync_file, target)
        for folder in dict.fromkeys(os.path.dirname(target) for target in targets):
            _sync_folder(folder)
            self._make_folders(folder)

    def delete_exact(self, files: Sequence[FileStat]) -> tuple[FileStat, ...]:
        """A file is taken aside under a hidden name and looked at once more, because a look and a deletion are two
        steps. Another file goes back to its place."""
        targets = [self._locate(file.path) for file in files]
        left = tuple(file for file, target in zip(files, targets, strict=True) if not _deleted(file, target))
        _sync_folders(targets)
        return left

    def replace_exact(self, file: FileStat, data: bytes) -> bool:
        """The file is looked at just before it is replaced. What is written in the instant between is lost."""
        target = self._locate(file.path)
        with self._temporary_for(target) as temporary:
            _write_synced(temporary, data)
            if not _is(file, target):
                return False
            _rename(temporary, target)
        return True

    def clean_up(self, *, before_ms: int, dry_run: bool) -> tuple[FileStat, ...]:
        """Also removes folders that have been empty since then. An object store has no folders."""
        found = []
        for folder, _, names in os.walk(self._root, topdown=False):
            for name in names:
                if name.startswith(_TEMPORARY_PREFIX):
                    stale = _stale(os.path.join(folder, name), self._root, before_ms)
                    found += [] if stale is None else [stale]
            if not dry_run and folder != self._root and _stale(folder, self._root, before_ms):
                with _passed_over():  # not empty, or gone
                    os.rmdir(folder)
        if not dry_run:
            for left in found:
                with contextlib.suppress(*_NOT_A_FILE):
                    os.unlink(os.path.join(self._root, left.path))
        return tuple(found)

    def open_input(self, path: str, *, size_bytes: int | None = None) -> pa.NativeFile:
        def opened(target: str) -> pa.NativeFile:
            if os.path.isdir(target):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), target)
            # Not memory-mapped: an error below a mapping kills the process instead of raising.
            return pa.OSFile(target, "rb")

        return _of_file(opened, self._locate(path))

    def open_output(self, path: str) -> AbstractContextManager[pa.NativeFile]:
        return self._output(self._locate(path))

    @contextmanager
    def _output(self, target: str) -> Iterator[pa.NativeFile]:
        with self._temporary_for(target) as temporary:
            with pa.OSFile(temporary, "wb") as file:
                yield file
            _sync_file(temporary)
            _rename(temporary, target)

    @contextmanager
    def _temporary_for(self, target: str) -> Iterator[str]:
        """The name of a hidden sibling of ``target`` in an existing folder; the file is gone afterwards."""
        folder = os.path.dirname(target)
        self._make_folders(folder)
        temporary = os.path.join(folder, _TEMPORARY_PREFIX + uuid.uuid4().hex)
        try:
            yield temporary
        finally:
            # A left-over is hidden and harmless; an error here would hide that the file was created.
            with _passed_over():
                os.unlink(temporary)

    def _make_folders(self, folder: str) -> None:
        """Make a folder of the table. The root is made by a store that has not seen it.

        :raises NothingCreatedError: the root was there, and is gone.
        """
        if not self._sees_root():
            if self._has_seen_root:
                raise NothingCreatedError(
                    f"{self._root!r} is gone: the table was removed, got another name, or its folder is not mounted "
                    "on this host. Open the table where it is now",
                    path=self._root,
                )
            _make_folders(self._root)
            self._has_seen_root = True
        _make_folders(folder, below=self._root)

    def _locate(self, path: str) -> str:
        """The absolute path of the file. Its real path is checked to lie inside the root, too."""
        if check_path(path).rpartition("/")[2].startswith(_TEMPORARY_PREFIX):
            raise InputError(f"{path!r}: names that start with {_TEMPORARY_PREFIX!r} are reserved", path=path)
        target = os.path.join(self._root, path)
        if not self._has_seen_root:
            self._sees_root()
        if not self._is_inside(target):
            raise StoreError(f"{path!r} leads out of {self._root!r} through a symbolic link", path=path)
        return target

    def _sees_root(self) -> bool:
        is_there = os.path.isdir(self._root)
        self._has_seen_root = self._has_seen_root or is_there
        return is_there

    def _is_inside(self, target: str) -> bool:
        return os.path.realpath(target).startswith(os.path.realpath(self._root).rstrip("/") + "/")

    def _walk(self, folder: str, prefix: str, start_after: bytes) -> Iterator[FileStat]:
        children = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    # With a slash at its end, a folder sorts where the paths below it sort.
                    slash = "/" if entry.is_dir(follow_symlinks=False) else ""
                    key = os.fsencode(f"{prefix}{entry.name}{slash}")
                    if key > start_after or (slash and start_after.startswith(key)):
                        children.append((key, entry))
        except _NOT_A_FILE:
            return
        children.sort(key=lambda child: child[0])
        for key, entry in children:
            if key.endswith(b"/"):
                yield from self._walk(entry.path, f"{prefix}{entry.name}/", start_after)
            else:
                found = self._stat_entry(f"{prefix}{entry.name}", entry)
                if found is not None:
                    yield found

    def _stat_entry(self, path: str, entry: os.DirEntry[str]) -> FileStat | None:
        """``None`` if the entry is no file of the table, or is gone."""
        if entry.name.startswith(_TEMPORARY_PREFIX) or (entry.is_symlink() and not self._is_inside(entry.path)):
            return None
        try:
            check_path(path)
            found = entry.stat()
        except (InputError, *_NOT_A_FILE):
            return None
        return _file_stat(path, found) if stat.S_ISREG(found.st_mode) else None


def _file_stat(path: str, found: os.stat_result) -> FileStat:
    return FileStat(path, found.st_size, found.st_mtime_ns // 1_000_000, f"{found.st_ino}-{found.st_mtime_ns}")


def _stale(target: str, root: str, before_ms: int) -> FileStat | None:
    """The file, if it is there and was last changed before ``before_ms``."""
    try:
        found = _file_stat(os.path.relpath(target, root), os.lstat(target))
    except _NOT_A_FILE:
        return None
    return found if found.modified_ms < before_ms else None


def _is(file: FileStat, target: str) -> bool:
    """Whether the file at ``target`` is the one that was listed."""
    try:
        return _file_stat(file.path, os.stat(target)) == file
    except _NOT_A_FILE:
        return False


def _deleted(file: FileStat, target: str) -> bool:
    """Delete the file that was listed: ``False`` if another one has its name."""
    if not os.path.lexists(target):
        return True
    if not _is(file, target):
        return False
    aside = os.path.join(os.path.dirname(target), _TEMPORARY_PREFIX + uuid.uuid4().hex)
    try:
        os.rename(target, aside)
    except _NOT_A_FILE:
        return True
    try:
        is_listed = _is(file, aside)
    except BaseException:
        _put_back(file, aside, target)
        raise
    if is_listed:
        os.unlink(aside)
        return True
    _put_back(file, aside, target)
    return False


def _put_back(file: FileStat, aside: str, target: str) -> None:
    try:
        os.link(aside, target)
    except FileExistsError as error:
        raise StoreError(
            f"{target!r} was created again twice while it was being deleted; one of the two files is {aside!r}",
            path=file.path,
        ) from error
    os.unlink(aside)


def _of_file(read: Callable[[str], _T], target: str) -> _T:
    """``read(target)``. A folder in place of the file counts as a missing file, as on object stores, and so does a
    name that is too long."""
    try:
        return read(target)
    except OSError as error:
        if isinstance(error, IsADirectoryError | NotADirectoryError) or error.errno == errno.ENAMETOOLONG:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), target) from error
        raise


def _write_synced(temporary: str, data: bytes) -> None:
    with open(temporary, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _rename(temporary: str, target: str) -> None:
    os.replace(temporary, target)
    _sync_folder(os.path.dirname(target))


def _link(temporary: str, target: str) -> Put:
    try:
        os.link(temporary, target)
    except OSError as error:
        if not is_own_failure(error):
            raise
        # Over a network, a repeated request can fail because its first copy did the work.
        made = _is_same_file(temporary, target)
        if made:
            return Put.CREATED
        if error.errno == errno.EEXIST:
            return Put.EXISTS
        if made is None or error.errno not in _REFUSALS:
            return Put.UNKNOWN
        if error.errno in _NO_HARD_LINKS:
            raise NothingCreatedError(
                f"the file system of {os.path.dirname(target)!r} has no hard links ({error.strerror}), which commits "
                "need: keep the table on a local disk, on NFS, or on an object store by its own URL",
                path=target,
            ) from error
        raise
    return Put.CREATED


def _not_created(error: OSError, target: str) -> NothingCreatedError:
    remedy = _REMEDIES.get(error.errno or 0, "see to the file system and try again")
    return NothingCreatedError(
        f"{target!r} was not created ({error.strerror or error}): {remedy}", path=target, errno=error.errno
    )


def _is_same_file(left: str, right: str) -> bool | None:
    """``None`` if the file system does not tell."""
    try:
        return os.path.samestat(os.lstat(left), os.lstat(right))
    except _NOT_A_FILE:
        return False
    except OSError as error:
        if not is_own_failure(error):
            raise
        return None


@contextmanager
def _passed_over() -> Iterator[None]:
    """Passes over errors of the file system, and over nothing else: a time limit may end any call."""
    try:
        yield
    except OSError as error:
        if not is_own_failure(error):
            raise


def _make_folders(folder: str, *, below: str = "") -> None:
    """Make the folder and all above it, where they are missing. When this returns, their names are durable, also of
    those that another process made, and may not have synced yet.

    :param below: a folder that is not made, nor any above it.
    :raises FileNotFoundError: that folder is gone.
    """
    missing = []
    there = folder
    while there != below and not os.path.isdir(there):
        missing.append(there)
        there = os.path.dirname(there)
    for new in reversed(missing):
        try:
            os.mkdir(new)
        except FileExistsError:
            pass
        except NotADirectoryError as error:
            raise InputError(f"{os.path.dirname(new)!r} is a file; a table needs a folder", path=new) from error
        _durable_names.pop(os.path.realpath(new), None)  # the inode may be that of a folder that is gone
    _sync_names(os.path.realpath(folder))


def _sync_names(folder: str) -> None:
    """Sync the names of a folder and of those above it, as far as its file system reaches. Each is synced once by a
    process, as long as the same folder has the name."""
    fresh: list[tuple[str, tuple[int, int]]] = []
    while (above := os.path.dirname(folder)) != folder:
        found, holder = os.stat(folder), os.stat(above)
        if found.st_dev != holder.st_dev:
            break  # here a file system is mounted
        identity = (found.st_dev, found.st_ino)
        if _durable_names.get(folder) != identity:
            fresh.append((folder, identity))
        folder = above
    for name, identity in reversed(fresh):
        # Who may use a folder, but not read it, cannot sync it.
        with contextlib.suppress(PermissionError):
            _sync_folder(os.path.dirname(name))
        if len(_durable_names) >= _MOST_NAMES:
            _durable_names.clear()
        _durable_names[name] = identity


def _sync_folders(deleted: Sequence[str]) -> None:
    """Sync the folders of files, so that what was reported as deleted does not come back after a power cut."""
    for folder in dict.fromkeys(os.path.dirname(target) for target in deleted):
        with contextlib.suppress(*_NOT_A_FILE):
            _sync_folder(folder)


def _sync_file(target: str) -> None:
    descriptor = os.open(target, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some mounted file systems do not sync folders; they have nothing stronger to offer.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP):
            raise
    finally:
        os.close(descriptor)
