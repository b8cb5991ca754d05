"""Finds a text in everything that a folder holds, whatever holds it: names, bytes, and what files decode to.

It knows nothing of tables, so it is a judge of what an erasure leaves.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["grep"]


def grep(folder: Path, text: str) -> list[str]:
    """The files, relative to the folder, whose name or content has the text in it."""
    found = []
    for file in sorted(folder.rglob("*")):
        name = str(file.relative_to(folder))
        if text in name or (file.is_file() and any(text in part for part in _decoded(file.name, file.read_bytes()))):
            found.append(name)
    return found


def _decoded(name: str, data: bytes) -> Iterator[str]:
    yield data.decode("utf-8", "replace")
    if name.endswith(".gz"):
        yield from _decoded(name.removesuffix(".gz"), gzip.decompress(data))
    elif name.endswith(".bz2"):
        yield from _decoded(name.removesuffix(".bz2"), bz2.decompress(data))
    elif name.endswith(".zst"):
        plain = pa.CompressedInputStream(pa.BufferReader(data), "zstd").read()
        yield from _decoded(name.removesuffix(".zst"), plain)
    elif name.endswith(".parquet"):
        file = pq.ParquetFile(io.BytesIO(data))
        yield str(file.metadata.to_dict())
        yield str(file.metadata.metadata)
        yield from _values(file.read().to_pylist())
    elif name.endswith(".avro"):
        yield from _values(list(fastavro.reader(io.BytesIO(data))))
    elif name.endswith(".json"):
        for line in data.splitlines():
            if line.strip():
                yield from _values(json.loads(line))


def _values(value: Any) -> Iterator[str]:
    """All names and values within a value, and those of JSON within texts."""
    if isinstance(value, Mapping):
        yield from _values([*value, *value.values()])
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _values(part)
    else:
        yield value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        yield repr(value)
        if isinstance(value, str) and value[:1] in ("{", "["):
            with contextlib.suppress(ValueError):
                yield from _values(json.loads(value))
