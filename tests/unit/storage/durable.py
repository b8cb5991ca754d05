"""What a disk would hold after a power cut, by the calls of ``os.fsync`` alone.

The content of a file is durable once the file was synced; a name is durable once the folder that holds it was synced.
This is all that POSIX promises.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

__all__ = ["Disk"]

_Inode = tuple[int, int]


class Disk:
    """Watches the syncs of this process, from the making of the object on.

    :param root: a folder that is there already, and durable. The tables are below it.
    """

    def __init__(self, patch: pytest.MonkeyPatch, root: Path) -> None:
        self.commits: dict[str, list[str]] = {}
        """Path of each commit file, and the visible files that were not durable before it got its name."""
        self._root = root
        self._lock = threading.Lock()
        self._contents: dict[_Inode, bytes] = {}
        self._names: dict[_Inode, dict[str, _Inode]] = {}
        self._really_link = os.link
        self._really_mkdir = os.mkdir
        patch.setattr(os, "fsync", self._fsync)
        patch.setattr(os, "link", self._link)
        patch.setattr(os, "mkdir", self._mkdir)

    def lost(self) -> list[str]:
        """The visible files that a power cut would take, or change."""
        left = self.left()
        return [name for name, data in self._visible() if left.get(name) != data]

    def left(self) -> dict[str, bytes]:
        """The files after a power cut, by their paths below the root."""
        found: dict[str, bytes] = {}
        self._walk(_inode(os.stat(self._root)), "", found.__setitem__)
        return found

    def cut(self, target: Path) -> Path:
        """Makes a copy of the tables as they are after a power cut."""
        for name, data in self.left().items():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes(data)
        return target

    def _fsync(self, descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        inode = _inode(os.fstat(descriptor))
        # One at a time: what an earlier look at a folder found may not take the place of a later one's.
        with self._lock:
            if os.path.isdir(path):
                with os.scandir(path) as entries:
                    self._names[inode] = {entry.name: self._known(entry) for entry in entries}
            else:
                self._contents[inode] = Path(path).read_bytes()

    def _known(self, entry: os.DirEntry[str]) -> _Inode:
        """The inode of an entry. A file system gives the number of a file that is gone to a new folder, and so on."""
        inode = _inode(entry.stat(follow_symlinks=False))
        (self._contents if entry.is_dir(follow_symlinks=False) else self._names).pop(inode, None)
        return inode

    def _link(self, source: str, target: str) -> None:
        if os.path.basename(os.path.dirname(target)) == "_delta_log":
            self.commits[os.path.relpath(target, self._root)] = self.lost()
        self._really_link(source, target)

    def _mkdir(self, path: str | Path, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        """Makes a folder. It is empty, also where a folder that is gone had its inode, and names that were synced."""
        with self._lock:
            self._really_mkdir(path, mode, dir_fd=dir_fd)
            self._names.pop(_inode(os.stat(path, dir_fd=dir_fd)), None)

    def _visible(self) -> list[tuple[str, bytes]]:
        """All files, but those that are half-written, and the checksums that Hadoop puts beside its own files."""
        files = [file for file in sorted(self._root.rglob("*")) if file.is_file() and not file.name.startswith(".")]
        return [(str(file.relative_to(self._root)), file.read_bytes()) for file in files]

    def _walk(self, folder: _Inode, prefix: str, take: Callable[[str, bytes], None]) -> None:
        for name, inode in self._names.get(folder, {}).items():
            if inode in self._contents:
                take(f"{prefix}{name}", self._contents[inode])
            else:
                self._walk(inode, f"{prefix}{name}/", take)


def _inode(found: os.stat_result) -> _Inode:
    return found.st_dev, found.st_ino
