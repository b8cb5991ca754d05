"""The actions of a Delta log, and their JSON form (Delta protocol, section "Actions").

An action is a frozen value; its mappings are never changed after construction. JSON keys that
this module does not know are kept in ``extra`` and written back. Paths are URL-encoded in the
log (RFC 2396) and plain here. Instants are UTC epoch milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, TypeAlias
from urllib.parse import quote, unquote

import orjson

from lakemerge.delta.vectors import DeletionVector
from lakemerge.errors import InputError, TableDamagedError, UnsupportedFeatureError
from lakemerge.storage.base import check_path

__all__ = [
    "DEFAULT_FORMAT",
    "TXNS_UNTIL",
    "UNPLAIN_PATH",
    "Action",
    "AddFile",
    "CommitInfo",
    "DomainMetadata",
    "Metadata",
    "Protocol",
    "RemoveFile",
    "Txn",
    "decode",
    "decode_commit_info",
    "decode_path",
    "encode",
    "encode_path",
]

TXNS_UNTIL: Final = "lakemerge.txnsUntil"
"""The member of ``commitInfo`` with the epoch milliseconds up to which a commit forgets transactions."""

DEFAULT_FORMAT: Final[Mapping[str, object]] = {"provider": "parquet", "options": {}}

UNPLAIN_PATH: Final = r"[^A-Za-z0-9/=\-_.~]|(?:^|/)\.{0,2}(?:/|$)"
"""Matches every spelled path that is not its own decoded form, or that may not be clean.
Valid for Python's ``re`` and for RE2."""

_UNPLAIN = re.compile(UNPLAIN_PATH)
_ABSOLUTE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.\-]*:")


@dataclass(frozen=True, slots=True)
class Protocol:
    min_reader: int
    min_writer: int
    reader_features: frozenset[str] = frozenset()
    """Empty unless ``min_reader`` is 3."""
    writer_features: frozenset[str] = frozenset()
    """Empty unless ``min_writer`` is 7."""
    extra: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Metadata:
    id: str
    name: str | None
    description: str | None
    schema_string: str
    """The schema as Delta's JSON."""
    partition_columns: tuple[str, ...]
    configuration: Mapping[str, str]
    created_time_ms: int | None
    extra: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AddFile:
    path: str
    """Relative to the table's root, decoded."""
    partition_values: Mapping[str, str | None]
    size_bytes: int
    modification_time_ms: int
    data_change: bool
    stats: str | None = None
    """Statistics as Delta's JSON, never parsed by the log."""
    tags: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, object] = field(default_factory=dict)
    encoded_path: str | None = None
    """How the log spells the path, if :func:`encode_path` would spell it differently. Other engines match an add with
    its remove by spelling, so it must not change."""
    vector: DeletionVector | None = None
    """The rows of the file that do not count. Path and vector together are the file's identity: the same data file
    under another vector is another file of the table."""

    @property
    def identity(self) -> tuple[str, str | None]:
        return self.path, None if self.vector is None else self.vector.id


@dataclass(frozen=True, slots=True)
class RemoveFile:
    path: str
    deletion_time_ms: int | None
    data_change: bool
    partition_values: Mapping[str, str | None] | None = None
    size_bytes: int | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    """Not kept in checkpoints (Delta protocol, section "Checkpoints")."""
    extra: Mapping[str, object] = field(default_factory=dict)
    encoded_path: str | None = None
    """As in :class:`AddFile`."""
    vector: DeletionVector | None = None
    """That of the add which it takes away."""

    @property
    def identity(self) -> tuple[str, str | None]:
        return self.path, None if self.vector is None else self.vector.id


@dataclass(frozen=True, slots=True)
class Txn:
    app_id: str
    version: int
    last_updated_ms: int | None = None
    extra: Mapping[str, object] = field(default_factory=dict)

    FORGOTTEN: ClassVar[int] = -(2**63)
    """The version that takes a transaction back: the application has committed nothing. Delta has no action for that,
    and every number of an application is above this one."""


@dataclass(frozen=True, slots=True)
class DomainMetadata:
    domain: str
    configuration: str
    removed: bool = False
    extra: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CommitInfo:
    fields: Mapping[str, object]

    @property
    def txn_id(self) -> str | None:
        value = self.fields.get("txnId")
        return value if isinstance(value, str) else None

    @property
    def txns_until_ms(self) -> int | None:
        """The time up to which the commit forgets transactions; see :data:`TXNS_UNTIL`."""
        value = self.fields.get(TXNS_UNTIL)
        return value if isinstance(value, int) else None

    @property
    def in_commit_timestamp_ms(self) -> int | None:
        value = self.fields.get("inCommitTimestamp")
        return value if isinstance(value, int) else None


Action: TypeAlias = Protocol | Metadata | AddFile | RemoveFile | Txn | DomainMetadata | CommitInfo


def encode_path(path: str) -> str:
    """Spell a path for the log. Everything except unreserved characters, ``/`` and ``=`` is escaped. Every reader
    decodes that in the same way, and no ``:`` can pass for a URL scheme."""
    return quote(path, safe="/=")


def decode_path(spelled: str) -> tuple[str, str | None]:
    """The plain path, and also ``spelled`` if :func:`encode_path` would spell it differently, else ``None``.

    Raises :class:`UnsupportedFeatureError` for an absolute path, :class:`InputError` for another one outside the table,
    ``ValueError`` for bad escapes.
    """
    if _UNPLAIN.search(spelled) is None:
        return spelled, None
    if _ABSOLUTE.match(spelled):
        raise UnsupportedFeatureError(
            f"the log names the file {spelled!r} by an absolute path, as shallow clones do; this library reads files "
            "below the table's folder. A deep copy (CREATE TABLE ... AS SELECT) has all files there",
            features=("absolute paths",),
            path=spelled,
        )
    path = check_path(unquote(spelled, errors="strict"))
    return path, None if encode_path(path) == spelled else spelled


def encode(actions: Iterable[Action]) -> bytes:
    """One JSON object a line, in the order given: the content of a commit file."""
    return b"".join(orjson.dumps(_to_json(action), option=orjson.OPT_APPEND_NEWLINE) for action in actions)


def decode(data: bytes, name: str) -> tuple[Action, ...]:
    """The actions of a commit file called ``name``; unknown actions are passed over.

    Raises :class:`TableDamagedError` naming file and line for an empty file, broken JSON, a
    missing or ill-typed field, and a path outside the table (``..``); :class:`UnsupportedFeatureError`
    for absolute paths of files and vectors, which Delta allows and this library does not, and for a
    deletion vector in the log itself.
    """
    found: list[Action] = []
    empty = True
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line and not line.isspace():
            empty = False
            found.extend(_decode_line(line, name, number))
    if empty:
        raise TableDamagedError(f"{name} is empty", path=name)
    return tuple(found)


def decode_commit_info(data: bytes, name: str) -> CommitInfo | None:
    """Only the commit's provenance. Other lines are not read, so the history of a table with unknown features can be
    shown."""
    for number, line in enumerate(data.split(b"\n"), start=1):
        if b'"commitInfo"' in line:
            for action in _decode_line(line, name, number):
                if isinstance(action, CommitInfo):
                    return action
    return None


def _decode_line(line: bytes, name: str, number: int) -> list[Action]:
    try:
        entry = orjson.loads(line)
        if not isinstance(entry, dict):
            raise ValueError("not a JSON object")
        return [
            _FROM_JSON[kind](_Fields(fields))
            for kind, fields in entry.items()
            if fields is not None and kind in _FROM_JSON
        ]
    except (ValueError, InputError) as error:
        raise TableDamagedError(f"{name}, line {number}, cannot be read: {error}", path=name, line=number) from error


_TEXT_OR_NULL = frozenset({str, type(None)})


class _Fields:
    """Takes typed fields out of a JSON object. ``rest`` has those that were not taken."""

    def __init__(self, fields: object) -> None:
        if not isinstance(fields, dict):
            raise ValueError("an action is not a JSON object")
        self.rest: dict[str, object] = {key: value for key, value in fields.items() if value is not None}

    def text(self, key: str) -> str:
        value = self.rest.pop(key, None)
        if not isinstance(value, str):
            raise ValueError(f"{key!r} is missing or not a string")
        return value

    def maybe_text(self, key: str) -> str | None:
        return self.text(key) if key in self.rest else None

    def integer(self, key: str) -> int:
        value = self.rest.pop(key, None)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{key!r} is missing or not an integer")
        return value

    def maybe_integer(self, key: str) -> int | None:
        return self.integer(key) if key in self.rest else None

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.rest.pop(key, None)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ValueError(f"{key!r} is not a boolean")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.rest.pop(key, None)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ValueError(f"{key!r} is not a list of strings")
        return tuple(value)

    def values(self, key: str) -> dict[str, str | None] | None:
        value = self.rest.pop(key, None)
        if value is None:
            return None
        if not isinstance(value, dict) or not _TEXT_OR_NULL.issuperset(map(type, value.values())):
            raise ValueError(f"{key!r} is not a map of strings")
        return value

    def strings(self, key: str) -> dict[str, str]:
        """A map whose null entries mean the same as absent ones."""
        return {k: v for k, v in (self.values(key) or {}).items() if v is not None}


def _protocol(fields: _Fields) -> Protocol:
    return Protocol(
        min_reader=fields.integer("minReaderVersion"),
        min_writer=fields.integer("minWriterVersion"),
        reader_features=frozenset(fields.texts("readerFeatures")),
        writer_features=frozenset(fields.texts("writerFeatures")),
        extra=fields.rest,
    )


def _metadata(fields: _Fields) -> Metadata:
    layout = fields.rest.get("format")
    if layout is None or layout == DEFAULT_FORMAT:
        fields.rest.pop("format", None)
    elif not isinstance(layout, dict) or layout.get("provider") != "parquet":
        raise UnsupportedFeatureError(f"data files of format {layout!r} are not supported", format=layout)
    return Metadata(
        id=fields.text("id"),
        name=fields.maybe_text("name"),
        description=fields.maybe_text("description"),
        schema_string=fields.text("schemaString"),
        partition_columns=fields.texts("partitionColumns"),
        configuration=fields.strings("configuration"),
        created_time_ms=fields.maybe_integer("createdTime"),
        extra=fields.rest,
    )


def _add(fields: _Fields) -> AddFile:
    path, encoded_path = decode_path(fields.text("path"))
    return AddFile(
        vector=DeletionVector.from_json(fields.rest.pop("deletionVector", None)),
        path=path,
        partition_values=fields.values("partitionValues") or {},
        size_bytes=fields.integer("size"),
        modification_time_ms=fields.integer("modificationTime"),
        data_change=fields.flag("dataChange", default=True),
        stats=fields.maybe_text("stats"),
        tags=fields.strings("tags"),
        extra=fields.rest,
        encoded_path=encoded_path,
    )


def _remove(fields: _Fields) -> RemoveFile:
    path, encoded_path = decode_path(fields.text("path"))
    fields.rest.pop("extendedFileMetadata", None)
    return RemoveFile(
        vector=DeletionVector.from_json(fields.rest.pop("deletionVector", None)),
        path=path,
        deletion_time_ms=fields.maybe_integer("deletionTimestamp"),
        data_change=fields.flag("dataChange", default=True),
        partition_values=fields.values("partitionValues"),
        size_bytes=fields.maybe_integer("size"),
        tags=fields.strings("tags"),
        extra=fields.rest,
        encoded_path=encoded_path,
    )


def _txn(fields: _Fields) -> Txn:
    return Txn(fields.text("appId"), fields.integer("version"), fields.maybe_integer("lastUpdated"), fields.rest)


def _domain(fields: _Fields) -> DomainMetadata:
    return DomainMetadata(
        fields.text("domain"), fields.text("configuration"), fields.flag("removed", default=False), fields.rest
    )


_FROM_JSON: Final[Mapping[str, Callable[[_Fields], Action]]] = {
    "protocol": _protocol,
    "metaData": _metadata,
    "add": _add,
    "remove": _remove,
    "txn": _txn,
    "domainMetadata": _domain,
    "commitInfo": lambda fields: CommitInfo(fields.rest),
}


def _to_json(action: Action) -> dict[str, dict[str, object]]:
    match action:
        case AddFile():
            fields: dict[str, object | None] = {
                "path": action.encoded_path or encode_path(action.path),
                "partitionValues": action.partition_values,
                "size": action.size_bytes,
                "modificationTime": action.modification_time_ms,
                "dataChange": action.data_change,
                "stats": action.stats,
                "tags": action.tags or None,
                "deletionVector": None if action.vector is None else action.vector.to_json(),
            }
            return {"add": _present(fields, action.extra)}
        case RemoveFile():
            fields = {
                "path": action.encoded_path or encode_path(action.path),
                "deletionTimestamp": action.deletion_time_ms,
                "dataChange": action.data_change,
                "extendedFileMetadata": (action.partition_values is not None and action.size_bytes is not None) or None,
                "partitionValues": action.partition_values,
                "size": action.size_bytes,
                "tags": action.tags or None,
                "deletionVector": None if action.vector is None else action.vector.to_json(),
            }
            return {"remove": _present(fields, action.extra)}
        case DomainMetadata():
            fields = {"domain": action.domain, "configuration": action.configuration, "removed": action.removed}
            return {"domainMetadata": _present(fields, action.extra)}
        case Txn():
            fields = {"appId": action.app_id, "version": action.version, "lastUpdated": action.last_updated_ms}
            return {"txn": _present(fields, action.extra)}
        case Metadata():
            fields = {
                "id": action.id,
                "name": action.name,
                "description": action.description,
                "format": DEFAULT_FORMAT,
                "schemaString": action.schema_string,
                "partitionColumns": action.partition_columns,
                "configuration": action.configuration,
                "createdTime": action.created_time_ms,
            }
            return {"metaData": _present(fields, action.extra)}
        case Protocol():
            fields = {
                "minReaderVersion": action.min_reader,
                "minWriterVersion": action.min_writer,
                "readerFeatures": sorted(action.reader_features) if action.min_reader >= 3 else None,
                "writerFeatures": sorted(action.writer_features) if action.min_writer >= 7 else None,
            }
            return {"protocol": _present(fields, action.extra)}
        case CommitInfo():
            return {"commitInfo": dict(action.fields)}


def _present(fields: Mapping[str, object | None], extra: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in {**fields, **extra}.items() if value is not None}
