"""How text files are encoded: which of them can be read in blocks, and the text of the others as UTF-8."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

import pyarrow as pa

from lakemerge.ingest.formats.compressed import codec_of, decompressed
from lakemerge.ingest.formats.lines import Lines
from lakemerge.ingest.source import FileUnreadableError

__all__ = ["checked_marks", "is_bytewise", "parsed_encoding", "splits", "text_stream", "utf8_stream"]

_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")
"""What UTF-16 begins with. No other encoding is likely to begin so, and UTF-8 cannot."""


@lru_cache(maxsize=64)
def is_bytewise(encoding: str) -> bool:
    """Whether the bytes of ASCII mean nothing else anywhere in a text, so that its lines can be found without decoding
    it. It is so for UTF-8 and for the encodings of one byte that have ASCII in them.

    :raises LookupError: the encoding is not known.
    """
    ascii_bytes = bytes(range(128))
    name = codecs.lookup(encoding).name
    if name in ("utf-8", "ascii"):
        return True
    try:
        if ascii_bytes.decode(name) != ascii_bytes.decode("ascii"):
            return False
        # A first byte of two takes what follows with it.
        return all(len((bytes([byte]) + b"A").decode(name, errors="replace")) == 2 for byte in range(128, 256))
    except (UnicodeError, TypeError):
        return False


def parsed_encoding(encoding: str) -> str:
    """The encoding of the bytes that :func:`text_stream` gives."""
    return encoding if is_bytewise(encoding) else "utf-8"


def splits(path: str, compression: str | None, encoding: str) -> bool:
    """Whether a text file can be read in blocks."""
    return codec_of(path, compression) is None and is_bytewise(encoding)


def text_stream(data: pa.NativeFile, path: str, compression: str | None, encoding: str) -> pa.NativeFile:
    """The content of a file as a stream from its beginning: decompressed, and in :func:`parsed_encoding`."""
    stream = decompressed(data, path, compression)
    return stream if is_bytewise(encoding) else pa.transcoding_input_stream(stream, encoding, "utf-8")


def utf8_stream(data: pa.NativeFile, path: str, compression: str | None, encoding: str) -> pa.NativeFile:
    """The content of a file as a stream from its beginning: decompressed, and in UTF-8."""
    stream = decompressed(data, path, compression)
    return stream if encoding == "utf-8" else pa.transcoding_input_stream(stream, encoding, "utf-8")


def checked_marks(portions: Iterable[Lines], encoding: str) -> Iterator[Lines]:
    """The portions without a mark of UTF-8. Raises :class:`FileUnreadableError` for a mark of UTF-16."""
    for lines in portions:
        if lines.offset == 0 and encoding == "utf-8" and lines.data.startswith(_MARKS):
            raise FileUnreadableError("it begins like UTF-16: set the option encoding to 'utf-16'")
        yield lines.without_mark()
