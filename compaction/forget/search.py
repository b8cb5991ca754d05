"""Looks for keys in everything that a folder holds: decoded, and file names too.

Files of rows, records and remembered deletes are searched by their key columns, where the statistics of their row
groups allow for a key. Commits and checkpoints are searched in the places where a key may stand: boundaries, bounds of
log blocks, statistics, conditions and what callers said. All other files are searched as texts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compaction.forget.sought import Sought
from lakemerge._internal.parquet import ParquetFile
from lakemerge.delta import LOG_INFO, Action, Snapshot, encode
from lakemerge.errors import LakeMergeError
from lakemerge.format.config import MERGER_OPTIONS
from lakemerge.format.consumers import CONSUMER_DOMAIN_PREFIX
from lakemerge.format.ingests import INGEST_DOMAIN_PREFIX, INGEST_FOLDER
from lakemerge.format.names import (
    BASE_FOLDER,
    LOG_DOMAIN_PREFIX,
    LOG_FOLDER,
    MERGED_FOLDER,
    SAVEPOINT_DOMAIN_PREFIX,
    SLICE_TAG,
    TOMBSTONE_FOLDER,
    VECTOR_PREFIX,
)
from lakemerge.format.operations import Operation
from lakemerge.format.vectors import VECTOR_FILE
from lakemerge.storage.base import FileStat, Store
from lakemerge.storage.clock import CLOCK_FILE
from mergers.keys import key_columns, locate

__all__ = ["DELTA_LOG", "Found", "count_keys", "in_snapshot", "search_folder", "search_table", "text_rows"]

DELTA_LOG: Final = "_delta_log"
_OF_ROWS: Final = (f"{BASE_FOLDER}/", f"{LOG_FOLDER}/", f"{MERGED_FOLDER}/", f"{TOMBSTONE_FOLDER}/")
_CONSUMERS: Final = "_lakemerge/consumers"
_LAST_CHECKPOINT: Final = f"{DELTA_LOG}/_last_checkpoint"
_CODECS: Final = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
_CONDITIONS: Final = ("predicate", "set", "clauses", "where", "condition", "keys")
"""Parameters of operations that hold conditions, or keys that somebody noted."""
_NAMES: Final = (
    *("name", "names", "to", "uri", "description", "properties"),
    *("comments", "mergerOptions", "addConstraints", "dropConstraints"),
)
"""Parameters that hold other words of callers. Numbers are not looked for there."""
_OURS: Final = (LOG_INFO - {"operationParameters"}) | {"forget", "ingest", "isBlindAppend", "isolationLevel"}
"""Members of ``commitInfo`` that hold nothing of a caller."""
_BATCH_ROWS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found."""

    files: Mapping[str, int]
    """How many files were searched, by folder."""
    hits: tuple[str, ...]
    """The paths of the files that hold a key."""
    unread: tuple[str, ...]
    """The paths of the files that could not be read."""


def search_table(store: Store, sought: Sought) -> Found:
    """Search the folder of the table of the keys."""
    return _search(store, sought, lambda file: _in_table(store, file, sought), own_name=_own_name)


def search_folder(store: Store, sought: Sought) -> Found:
    """Search any other folder."""
    return _search(store, sought, lambda file: _in_any(store, file, sought))


def in_snapshot(snapshot: Snapshot, sought: Sought) -> bool:
    """Whether a version's definition, domains or applications have a key, whatever its files have."""
    parts: list[Action] = [snapshot.metadata, *snapshot.domains.values(), *snapshot.txns.values()]
    return any(_in_action(action, sought) for action in _lines(encode(parts)))


def _search(
    store: Store,
    sought: Sought,
    look: Callable[[FileStat], bool],
    *,
    own_name: Callable[[str], str | None] = lambda path: path,
) -> Found:
    """:param own_name: the part of a path that may hold a key; ``None``: the library made all of it."""
    files: Counter[str] = Counter()
    hits, unread = [], []
    for file in store.list(""):
        files[_folder(file.path)] += 1
        try:
            name = own_name(file.path) if sought.has_texts else None
            if (name is not None and sought.in_text(unquote(name))) or look(file):
                hits.append(file.path)
        except FileNotFoundError:
            continue  # somebody deleted it since it was listed
        except (pa.ArrowException, OSError, ValueError, LakeMergeError):
            unread.append(file.path)
    return Found(dict(files), tuple(hits), tuple(unread))


def _own_name(path: str) -> str | None:
    if path.startswith(f"{_CONSUMERS}/"):
        return path.rpartition("/")[2]
    ours = path.startswith((*_OF_ROWS, f"{DELTA_LOG}/", f"{INGEST_FOLDER}/")) or path == CLOCK_FILE
    return None if ours or VECTOR_FILE.fullmatch(path) else path


def _folder(path: str) -> str:
    parts = path.split("/")
    if path.startswith(VECTOR_PREFIX) and VECTOR_FILE.fullmatch(path):
        return f"{VECTOR_PREFIX}*"
    depth = 2 if parts[0] == "_lakemerge" else 1
    return "/".join(parts[:depth]) if len(parts) > depth else "."


def _in_table(store: Store, file: FileStat, sought: Sought) -> bool:
    path = file.path
    if path.startswith(f"{DELTA_LOG}/"):
        if path.endswith(".json"):
            return any(_in_action(action, sought) for action in _lines(store.get(path)))
        if path.endswith(".parquet"):
            return any(_in_action(action, sought) for action in _checkpoint(store, file))
        return path != _LAST_CHECKPOINT and _in_lines(store.get(path).splitlines(), sought)
    if VECTOR_FILE.fullmatch(path) or path.startswith(f"{_CONSUMERS}/") or path == CLOCK_FILE:
        return False  # numbers of rows, and of versions
    if path.startswith(_OF_ROWS) and path.endswith(".parquet"):
        return count_keys(store, path, sought, size_bytes=file.size_bytes) > 0
    if path.startswith(f"{INGEST_FOLDER}/") and not sought.has_texts and "reject" not in path.rsplit("/", 1)[-1]:
        return False  # paths, numbers and times
    return _in_any(store, file, sought)


def count_keys(
    store: Store, path: str, sought: Sought, *, numbers: Sequence[int] | None = None, size_bytes: int | None = None
) -> int:
    """How many rows of a file of the table have one of the keys.

    :param numbers: the numbers of the keys to look for. By default all.
    """
    config = sought.config
    stored = config.names.all_of(config.key)
    wanted = sought.table if numbers is None else sought.table.take(pa.array(numbers, pa.int64()))
    with store.open_input(path, size_bytes=size_bytes) as data, ParquetFile(data) as file:
        if not set(stored) <= set(file.schema_arrow.names):
            return sum(_in_bounds(file, sought)) if {"key_min", "key_max"} <= set(file.schema_arrow.names) else 0
        firsts = wanted.column(config.key[0])
        groups = [i for i in range(file.num_row_groups) if _may_hold(file.metadata.row_group(i), stored[0], firsts)]
        count = 0
        for batch in file.iter_batches(_BATCH_ROWS, row_groups=groups, columns=list(stored)) if groups else ():
            rows = pa.Table.from_batches([batch]).select(list(stored)).rename_columns(list(config.key))
            rows = rows.cast(pa.schema([config.schema.field(name).with_nullable(True) for name in config.key]))
            _, found = locate(key_columns(wanted, config.key), key_columns(rows, config.key))
            count += int(found.sum())
        return count


def _in_bounds(file: ParquetFile, sought: Sought) -> Iterator[bool]:
    """The bounds of log blocks in the index of a commit: keys as JSON."""
    for batch in file.iter_batches(_BATCH_ROWS, columns=["key_min", "key_max"]):
        for column in batch.columns:
            yield from (text is not None and text.encode() in sought.as_json for text in column.to_pylist())


def _may_hold(group: pq.RowGroupMetaData, name: str, values: pa.ChunkedArray) -> bool:
    """Whether statistics allow for one of the values."""
    for place in range(group.num_columns):
        column = group.column(place)
        if column.path_in_schema != name:
            continue
        try:
            stats = column.statistics
            if stats is None or not stats.has_min_max:
                return True
            low, high = pa.scalar(stats.min, values.type), pa.scalar(stats.max, values.type)
            inside = pc.and_(pc.greater_equal(values, low), pc.less_equal(values, high))
            return bool(pc.any(inside).as_py())
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            return True
    return True


def _lines(data: bytes) -> Iterator[Mapping[str, Any]]:
    for line in data.splitlines():
        if line.strip():
            action = orjson.loads(line)
            if isinstance(action, dict):
                yield action


def _checkpoint(store: Store, file: FileStat) -> Iterator[Mapping[str, Any]]:
    with store.open_input(file.path, size_bytes=file.size_bytes) as data, ParquetFile(data) as parquet:
        names = [
            name
            for name in ("add", "remove", "domainMetadata", "txn", "metaData")
            if name in parquet.schema_arrow.names
        ]
        for batch in parquet.iter_batches(_BATCH_ROWS, columns=names):
            for row in batch.to_pylist():
                yield {name: value for name, value in row.items() if value is not None}


def _in_action(action: Mapping[str, Any], sought: Sought) -> bool:
    """Whether an action of the log holds a key where one may stand."""
    for kind, body in action.items():
        if not isinstance(body, Mapping):
            continue
        if kind in ("add", "remove") and _in_file(body, sought):
            return True
        if kind == "domainMetadata" and _in_domain(body, sought):
            return True
        if kind == "commitInfo" and _in_info(body, sought):
            return True
        if kind == "txn" and sought.has_texts and _in_application(str(body.get("appId", "")), sought):
            return True
        if kind == "metaData" and sought.has_texts and _in_definition(body, sought):
            return True
    return False


def _in_file(body: Mapping[str, Any], sought: Sought) -> bool:
    tags = _plain(body.get("tags") or {})
    slice_tag = tags.get(SLICE_TAG) if isinstance(tags, dict) else None
    if slice_tag and orjson.dumps(orjson.loads(slice_tag).get("from")) in sought.as_json:
        return True
    if sought.partitions:
        values = _plain(body.get("partitionValues") or {})
        if tuple(values.get(name) for name in sought.config.stored_partition_by) in sought.partitions:
            return True
    key = sought.config.key
    if len(key) > 1 or not body.get("stats"):
        return False  # the bounds of one column are no key
    stats, (name,) = orjson.loads(body["stats"]), sought.config.names.all_of(key)
    bounds = ((stats.get(side) or {}).get(name) for side in ("minValues", "maxValues"))
    return any(bound is not None and sought.is_value(0, bound) for bound in bounds)


def _in_application(name: str, sought: Sought) -> bool:
    return not name.startswith(("lakemerge.", "merge-source")) and sought.in_text(name)


def _in_definition(body: Mapping[str, Any], sought: Sought) -> bool:
    """Whether a text that a caller wrote into the definition has a key: not the names and settings of the library."""
    properties = _plain(body.get("configuration") or {})
    told: list[object] = [
        body.get("name"),
        body.get("description"),
        *_comments(_parsed(body.get("schemaString") or "")),
    ]
    for name, value in properties.items():
        if name.startswith("delta.constraints.") or not name.startswith(("lakemerge.", "delta.")):
            told += [name, value]
    if any(sought.in_text(str(text)) for text in told if text is not None):
        return True
    return sought.in_values(_given(orjson.loads(properties.get(MERGER_OPTIONS) or "{}"), sought.config.schema.names))


def _given(value: object, columns: Collection[str]) -> object:
    """The options of a merger without the names of columns, which many of them are."""
    if isinstance(value, Mapping):
        return [_given(part, columns) for pair in value.items() for part in pair]
    if isinstance(value, list):
        return [_given(part, columns) for part in value]
    return None if value in columns else value


def _comments(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        yield value.get("comment")
        for part in value.values():
            yield from _comments(part)
    elif isinstance(value, list):
        for part in value:
            yield from _comments(part)


def _in_domain(body: Mapping[str, Any], sought: Sought) -> bool:
    name, text = str(body.get("domain", "")), body.get("configuration") or ""
    if name.startswith(LOG_DOMAIN_PREFIX):
        return bool(text) and _has_key(orjson.loads(text).get("blocks"), sought)
    if not sought.has_texts:
        return False
    for prefix in (SAVEPOINT_DOMAIN_PREFIX, CONSUMER_DOMAIN_PREFIX, INGEST_DOMAIN_PREFIX):
        if name.startswith(prefix):
            source = orjson.loads(text).get("source") if text and prefix == INGEST_DOMAIN_PREFIX else None
            return sought.in_text(name.removeprefix(prefix)) or sought.in_values(source)
    return not name.startswith("lakemerge.") and (sought.in_text(name) or sought.in_values(_parsed(text)))


def _has_key(value: object, sought: Sought) -> bool:
    if not isinstance(value, list):
        return False
    return orjson.dumps(value) in sought.as_json or any(_has_key(part, sought) for part in value)


def _in_info(body: Mapping[str, Any], sought: Sought) -> bool:
    if body.get("operation") in (Operation.FORGET, Operation.ERASE):
        return False
    given = body.get("operationParameters") or {}
    words = (*_CONDITIONS, *_NAMES) if sought.has_texts else _CONDITIONS
    texts = [value for name, value in given.items() if name in words]
    texts += [value for name, value in body.items() if name not in (*_OURS, "operationParameters")]
    told = [_parsed(text) if isinstance(text, str) else text for text in texts]
    return any(sought.in_values(each) for each in told)


def _parsed(text: str) -> object:
    """What a text holds, as JSON or as it is. A text of JSON escapes characters."""
    try:
        return [text, orjson.loads(text)]
    except ValueError:
        return text


def _plain(value: object) -> Any:
    """Maps, which Arrow gives as pairs, as dictionaries."""
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(part, tuple) and len(part) == 2 for part in value):
            return {str(name): _plain(part) for name, part in value}
        return [_plain(part) for part in value]
    return value


def _in_any(store: Store, file: FileStat, sought: Sought) -> bool:
    if file.path.endswith(".parquet"):
        with store.open_input(file.path, size_bytes=file.size_bytes) as data, ParquetFile(data) as parquet:
            return any(_in_rows(batch, sought) for batch in parquet.iter_batches(_BATCH_ROWS))
    if file.path.endswith(".avro"):
        return _in_avro(store, file, sought)
    with store.open_input(file.path, size_bytes=file.size_bytes) as data:
        codec = next((codec for ending, codec in _CODECS.items() if file.path.endswith(ending)), None)
        stream = data if codec is None else pa.CompressedInputStream(data, codec)
        return _in_lines(_lines_of(stream), sought)


def _in_rows(batch: pa.RecordBatch, sought: Sought) -> bool:
    """Whether a row has all values of a key. Rows are prefiltered by texts where the key has some."""
    return any(sought.in_values(row) for row in batch.to_pylist())


def text_rows(table: pa.Table, sought: Sought) -> list[int]:
    """The numbers of the rows in whose texts all values of a key stand."""
    texts = [
        name for name, field in zip(table.column_names, table.schema, strict=True) if pa.types.is_string(field.type)
    ]
    rows = table.select(texts).to_pylist()
    return [number for number, row in enumerate(rows) if sought.in_values(row)]


def _in_avro(store: Store, file: FileStat, sought: Sought) -> bool:
    try:
        import fastavro
    except ImportError as error:
        raise ValueError("fastavro is not installed") from error
    with store.open_input(file.path, size_bytes=file.size_bytes) as data:
        return any(sought.in_values(record) for record in fastavro.reader(data))


def _lines_of(stream: Any) -> Iterator[bytes]:
    """Lines of at most some MiB. Longer ones come in parts that overlap."""
    left = b""
    while piece := stream.read(2**20):
        *whole, left = (left + piece).split(b"\n")
        yield from whole
        if len(left) > 2**23:
            yield left
            left = left[-(2**16) :]
    yield left


def _in_lines(lines: Iterable[bytes], sought: Sought) -> bool:
    for line in lines:
        text = line.decode("utf-8", "replace")
        if sought.in_text(text):
            return True
        # JSON, and what is like it, may spell any character as an escape.
        if "\\" in text and sought.in_text(_unescaped(text)):
            return True
    return False


_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")


def _unescaped(text: str) -> str:
    plain = _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else found[2], text)
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
