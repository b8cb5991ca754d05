"""Files compressed as a whole. The end of their name says how, or the caller."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

__all__ = ["CODECS", "codec_of", "decompressed"]

CODECS: Final = {"gzip": "gzip", "zstd": "zstd", "bzip2": "bz2", "none": None}
"""A caller's name for a codec -> Arrow's name."""

_ENDINGS: Final = {".gz": "gzip", ".gzip": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bz2"}


def codec_of(path: str, named: str | None) -> str | None:
    """Arrow's name for how a file is compressed; ``None``: not at all."""
    if named is not None:
        return CODECS[named]
    dot = path.rfind(".")
    return _ENDINGS.get(path[dot:].lower()) if dot >= 0 else None


def decompressed(data: pa.NativeFile, path: str, named: str | None) -> pa.NativeFile:
    """The decompressed content of the file, as a stream from its beginning."""
    codec = codec_of(path, named)
    return data if codec is None else pa.CompressedInputStream(data, codec)
