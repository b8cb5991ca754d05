"""Answers of Python to the jar, as Spark passes them on.

Spark takes nothing from a data source but a schema when it asks for one, so an answer is a text in a schema. Spark
parses a schema several times, so long answers are compressed.
"""

from __future__ import annotations

import base64
from typing import Final

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from lakemerge.errors import InputError

__all__ = ["answering", "packed"]

_CODEC: Final = "zstd"
_LONG_BYTES: Final = 64 * 1024
_TEXT: Final = 4 * 2**20
"""The most characters in one text. Spark refuses a schema with a text of 20 million characters."""
_LIMIT_BYTES: Final = 2**31 - 1
"""The longest array of bytes in Java."""


def answering(told: bytes) -> StructType:
    """An answer in JSON, as a schema."""
    if len(told) < _LONG_BYTES:
        metadata: dict[str, object] = {"answer": told.decode()}
    else:
        text = packed(told)
        metadata = {"packed": [text[start : start + _TEXT] for start in range(0, len(text), _TEXT)]}
    return StructType([StructField("answer", StringType(), metadata=metadata)])


def packed(data: bytes) -> str:
    """Bytes for the jar (``Channel.unpacked``): their number, and the bytes, compressed, in Base64."""
    if len(data) > _LIMIT_BYTES:
        raise InputError(
            f"the plan of a read takes {len(data):,} bytes, and at most {_LIMIT_BYTES:,} can be told to Spark: read "
            "fewer partitions at a time, or compact the table"
        )
    compressed = pa.compress(data, codec=_CODEC, asbytes=True) if data else b""
    return f"{len(data)} {base64.b64encode(compressed).decode()}"
