"""Files that land in folders of a POSIX file system.

Links to files are followed, links to folders are not. A file whose name is not UTF-8 is passed over with a warning.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from operator import itemgetter

import pyarrow as pa

from lakemerge.ingest.source import FileUnreadableError, Outcome, Source, SourceFile, changed, gone, is_hidden
from mergers.logs import logger

__all__ = ["LocalSource"]

_logger = logger(__name__)

_MISSING = (FileNotFoundError, NotADirectoryError)
_UNREADABLE = frozenset({errno.EACCES, errno.EPERM, errno.EIO, errno.ELOOP, errno.ENXIO})


class LocalSource(Source):
    def list(self, folder: str, *, recursive: bool) -> Iterator[SourceFile]:
        return _walk(folder.rstrip("/") + "/", recursive)

    def stat(self, path: str) -> SourceFile | None:
        try:
            found = os.stat(path)
        except _MISSING:
            return None
        return _file(path, found) if stat.S_ISREG(found.st_mode) else None

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[pa.NativeFile]:
        with _readable(file.path):
            # Readers may close the file that they get. The descriptor stays open, to look at the file once more.
            descriptor = os.open(file.path, os.O_RDONLY)
            try:
                _check(file, os.fstat(descriptor))
                with open(descriptor, "rb", closefd=False) as opened, pa.PythonFile(opened, mode="r") as data:
                    yield data
                _check(file, os.fstat(descriptor))
            finally:
                os.close(descriptor)

    def delete(self, file: SourceFile) -> Outcome:
        there = self.stat(file.path)
        if there is None:
            return Outcome.GONE
        if there.token != file.token:
            return Outcome.CHANGED
        with contextlib.suppress(FileNotFoundError):
            os.unlink(file.path)
        return Outcome.DONE

    def move(self, file: SourceFile, target: str) -> Outcome:
        there = self.stat(file.path)
        if there is None:
            return Outcome.GONE
        if there.token != file.token:
            return Outcome.CHANGED
        os.makedirs(os.path.dirname(target), exist_ok=True)
        try:
            os.rename(file.path, target)
        except FileNotFoundError:
            return Outcome.GONE
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            return self._copy(file, target)
        if _token(os.stat(target)) == file.token:
            return Outcome.DONE
        # Somebody put another version there in between. It goes back, unless a third version has come.
        with contextlib.suppress(FileExistsError):
            os.link(target, file.path)
            os.unlink(target)
        return Outcome.CHANGED

    def archived(self, folder: str) -> Iterator[tuple[SourceFile, int]]:
        for path in _all(folder.rstrip("/") + "/"):
            with contextlib.suppress(*_MISSING):
                found = os.stat(path)
                # A rename leaves the time of change of the content and sets that of the inode.
                yield _file(path, found), found.st_ctime_ns // 1_000_000

    def _copy(self, file: SourceFile, target: str) -> Outcome:
        """Copy a file to another file system, and delete the original."""
        half = os.path.join(os.path.dirname(target), f".{uuid.uuid4().hex}.tmp")
        try:
            shutil.copy2(file.path, half)
            with open(half, "rb") as copied:
                os.fsync(copied.fileno())
            there = self.stat(file.path)
            if there is None or there.token != file.token:
                return Outcome.GONE if there is None else Outcome.CHANGED
            os.replace(half, target)
            _sync_folder(os.path.dirname(target))
            os.unlink(file.path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(half)
        return Outcome.DONE


def _sync_folder(folder: str) -> None:
    """The copy's name outlives a power cut before the original goes."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _walk(folder: str, recursive: bool) -> Iterator[SourceFile]:
    children: list[tuple[str, os.DirEntry[str]]] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                name = entry.name
                if is_hidden(name):
                    continue
                if not entry.is_dir(follow_symlinks=False):
                    children.append((name, entry))
                elif recursive:
                    # With a slash at its end, a folder sorts where the paths below it sort.
                    children.append((f"{name}/", entry))
    except _MISSING:
        return
    children.sort(key=itemgetter(0))
    for key, entry in children:
        if key[-1] == "/":
            yield from _walk(folder + key, recursive)
            continue
        try:
            found = entry.stat()
        except _MISSING:
            continue
        if not stat.S_ISREG(found.st_mode):
            continue
        if key.isascii() or _is_text(entry):
            yield _file(folder + key, found)


def _is_text(entry: os.DirEntry[str]) -> bool:
    try:
        entry.name.encode()
    except UnicodeEncodeError:
        _logger.warning("%r is skipped: its name is not UTF-8", os.fsencode(entry.path))
        return False
    return True


def _all(folder: str) -> Iterator[str]:
    try:
        entries = sorted(os.scandir(folder), key=lambda e: e.name + ("/" if e.is_dir(follow_symlinks=False) else ""))
    except _MISSING:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _all(f"{folder}{entry.name}/")
        else:
            yield f"{folder}{entry.name}"


def _token(found: os.stat_result) -> str:
    return f"{found.st_mtime_ns:x}-{found.st_size:x}-{found.st_ino:x}"


def _file(path: str, found: os.stat_result) -> SourceFile:
    size, time = found.st_size, found.st_mtime_ns
    return SourceFile(path, size, f"{time:x}-{size:x}-{found.st_ino:x}", time)  # as _token has it, for half the calls


def _check(file: SourceFile, found: os.stat_result) -> None:
    if _token(found) != file.token:
        raise changed(file.path)


@contextmanager
def _readable(path: str) -> Iterator[None]:
    try:
        yield
    except (*_MISSING, IsADirectoryError) as error:
        raise gone(path) from error
    except OSError as error:
        if error.errno not in _UNREADABLE:
            raise
        raise FileUnreadableError(f"{path} cannot be read: {error.strerror}", path=path) from error
