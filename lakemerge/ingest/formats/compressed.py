"""Files compressed as a whole. The end of their name says how, or the caller."""

from __future__ import annotations

import lzma
import zipfile
import zlib
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from lakemerge.ingest.source import FileUnreadableError

__all__ = ["CODECS", "ENDINGS", "codec_of", "decompressed"]

CODECS: Final = {
    "gzip": "gzip",
    "zstd": "zstd",
    "bzip2": "bz2",
    "lz4": "lz4",
    "xz": "xz",
    "zip": "zip",
    "none": None,
}
"""A caller's name for a codec -> Arrow's name, or for ``xz`` and ``zip``, which Arrow does not read, our own."""

ENDINGS: Final = {
    ".gz": "gzip",
    ".gzip": "gzip",
    ".zst": "zstd",
    ".zstd": "zstd",
    ".bz2": "bz2",
    ".lz4": "lz4",
    ".xz": "xz",
    ".zip": "zip",
}


def codec_of(path: str, named: str | None) -> str | None:
    """The name for how a file is compressed; ``None``: not at all."""
    if named is not None:
        return CODECS[named]
    dot = path.rfind(".")
    return ENDINGS.get(path[dot:].lower()) if dot >= 0 else None


def decompressed(data: pa.NativeFile, path: str, named: str | None) -> pa.NativeFile:
    """The decompressed content of the file, as a stream from its beginning.

    :raises FileUnreadableError: an archive holds no file, or several.
    """
    codec = codec_of(path, named)
    if codec is None:
        return data
    if codec == "xz":
        return pa.PythonFile(_Told(lzma.LZMAFile(data)), mode="r")
    if codec == "zip":
        return pa.PythonFile(_Told(_guarded(lambda: _only_member(data))), mode="r")
    return pa.CompressedInputStream(data, codec)


class _Told:
    """A stream of Python's library whose errors say that the file is damaged."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        data: bytes = _guarded(lambda: self._stream.read(size))
        return data

    def close(self) -> None:
        self._stream.close()
        self.closed = True


def _guarded(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (lzma.LZMAError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        # NotImplementedError: a method of compression that Python lacks; RuntimeError: a password is needed.
        raise FileUnreadableError(f"its compression is damaged or not known: {error}") from error


def _only_member(data: pa.NativeFile) -> Any:
    archive = zipfile.ZipFile(data)
    names = [
        name
        for name in archive.namelist()
        if not name.endswith("/") and not name.startswith("__MACOSX/") and not name.rpartition("/")[2].startswith(".")
    ]
    if len(names) != 1:
        told = f"{len(names)} files ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})" if names else "no file"
        raise FileUnreadableError(
            f"the zip archive holds {told}; it must hold one: unpack it, or make an archive of each"
        )
    return archive.open(names[0])
