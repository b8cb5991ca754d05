"""Where a write starts: everything about it that is decided before a row is read.

:meth:`Write.start` matches a frame's schema with the table's. It adds columns if the caller asks for that, and finds
the column of kinds, the merger and the number of buckets. The :class:`Write` that it makes goes down to whatever reads
rows, and nothing there decides any of this again. Source: docs/merge-semantics.md, sections 2 to 4.
"""

from __future__ import annotations

import numbers
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pyarrow as pa

from lakemerge._internal.arguments import shown
from lakemerge._internal.near import did_you_mean
from lakemerge.commits.provenance import Along, Isolation, Provenance
from lakemerge.delta import duration_ms
from lakemerge.errors import FrameError, SchemaError
from lakemerge.format.config import TableConfig
from lakemerge.format.names import KIND_COLUMN
from lakemerge.format.operations import Operation
from lakemerge.handle import Handle
from lakemerge.layout.view import TableView
from lakemerge.results.writes import UpsertResult
from lakemerge.schema.evolution import new_columns, with_columns_of_frame, with_schema
from lakemerge.schema.schema import castable
from lakemerge.write.carried import CARRIED
from lakemerge.write.checks import checks_of
from lakemerge.write.discard import discard
from lakemerge.write.frame import SYMBOLS, FramePlan
from lakemerge.write.moves import Moves
from lakemerge.write.pack import PackSpec
from mergers import Merger, RowKind
from mergers.type_names import type_name
from mergers.wording import argument, in_python

__all__ = ["OwnTxn", "Write", "WriteRequest", "choose_buckets", "plan_frame", "repeated", "with_columns_of"]

_MIB = 1024 * 1024
_HINTS = 5
_RECORD_RETENTION = "lakemerge.recordRetention"
"""After so many problems, columns get no hint any more: each is compared with all others, and told with all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRequest:
    """The options of a write. :meth:`lakemerge.LakeTable.upsert` describes those that users can set."""

    kind_column: str | None = None
    deletes: bool = False
    """Whether each row is a key to delete."""
    txn: tuple[str, int] | None = None
    info: Mapping[str, object] = field(default_factory=dict)
    states: bool = False
    """Whether the records are those of a transaction: the frame has the column ``KIND_COLUMN``, of sets and clears."""
    isolation: Isolation | None = None
    """For a transaction: which later commits it conflicts with."""
    merge_schema: bool = False
    operation: str | None = None
    """The name of the operation in the history, if not that of an upsert or delete."""
    before: Mapping[str, str] = field(default_factory=dict)
    """Partition column -> the frame's column with its value in the row before; see :mod:`lakemerge.write.moves`."""

    def merging_schema(self) -> WriteRequest:
        """The same, and the frame's new columns are added to the table."""
        return replace(self, merge_schema=True)

    def expanded(self, moves: Moves) -> WriteRequest:
        """The same, for the frame that has the deletes of moved keys."""
        return replace(self, before={}, kind_column=moves.kind_column)


class OwnTxn(NamedTuple):
    """An application transaction that the library itself makes, such as a stream's."""

    app: str
    number: int
    along: Along = Along()
    """What is committed with it, and on which condition."""


@dataclass(frozen=True, slots=True)
class Write:
    """One write in progress: where it began and how its frame becomes records."""

    handle: Handle
    begin: TableView
    frame: FramePlan
    pack: PackSpec
    provenance: Provenance
    started: float
    estimated_bytes: int | None = None
    """About how many bytes the frame has as Arrow data, if that is known."""
    reserved: int | None = None
    """The first ordinal that was reserved for the write's base files; ``None``: none was."""

    @staticmethod
    def start(
        handle: Handle,
        begin: TableView,
        frame_schema: pa.Schema,
        request: WriteRequest,
        *,
        estimated_bytes: int | None,
    ) -> Write | UpsertResult:
        """Check everything that can be checked before data is read. Returns a result if the request's ``txn`` was
        committed before."""
        started = time.monotonic()
        kind_column, deletes = request.kind_column, request.deletes
        schema, differs = _without_bits(frame_schema)
        states = request.states
        if request.merge_schema:
            begin = with_columns_of(handle, begin, schema, KIND_COLUMN if states else kind_column)
        merger = handle.merger(begin)
        frame = plan_frame(
            schema,
            begin.config,
            merger,
            kind_column=kind_column,
            deletes=deletes,
            states=states,
            differs=differs,
        )
        txn = _checked_txn(request.txn)
        if (done := _repeated(handle, begin, txn)) is not None:
            return done
        transaction = handle.new_transaction()
        operation = request.operation or (Operation.DELETE if deletes else Operation.UPSERT)
        parameters: dict[str, object] = {"columns": list(frame.schema.names)}
        if kind_column is not None:
            parameters["kindColumn"] = kind_column
        spec = PackSpec(
            store=handle.store,
            config=begin.config,
            merger=merger,
            frame=frame,
            buckets=begin.config.buckets or choose_buckets(estimated_bytes),
            settings=handle.settings,
            name=handle.write_name(begin, transaction),
            unites=duration_ms(begin.snapshot.metadata, _RECORD_RETENTION, default=0) == 0,
        )
        if request.merge_schema:
            parameters["mergeSchema"] = True
        given: object = request.txn
        provenance = Provenance(
            operation,
            parameters,
            transaction,
            txn,
            request.info,
            request.isolation,
            request.merge_schema,
            given.along if isinstance(given, OwnTxn) else Along(),
        )
        return Write(handle, begin, frame, spec, provenance, started, estimated_bytes)

    def sized(self, size_bytes: int) -> Write:
        """The same, after the frame was read as a whole. If the table has no bucket count yet, and the frame's size was
        not known, the size decides."""
        if self.estimated_bytes is not None or self.begin.config.buckets is not None:
            return self
        return replace(self, pack=replace(self.pack, buckets=choose_buckets(size_bytes)), estimated_bytes=size_bytes)

    @property
    def may_load(self) -> bool:
        """Whether the records may become base files: the table has neither base files nor logs, as far as this write
        has seen. A transaction writes logs, because its conflicts are judged by them."""
        return self.begin.is_empty and not self.frame.states

    @property
    def first_ordinal(self) -> int:
        """The ordinal of the write's first base file."""
        return self.begin.state.next_ordinal if self.reserved is None else self.reserved

    def discard(self, folders: Collection[str] | None = None) -> None:
        """Delete the write's files, or only those in some folders, unless its commit may land."""
        discard(self.handle.store, self.provenance.transaction, self.pack.name, folders=folders)

    def result(self, version: int, *, rows: int = 0, files: int = 0, size: int = 0, mode: str) -> UpsertResult:
        seconds = time.monotonic() - self.started
        return UpsertResult(version=version, rows=rows, files=files, bytes=size, mode=mode, seconds=seconds)


def repeated(handle: Handle, view: TableView, txn: tuple[str, int] | None) -> UpsertResult | None:
    """The result of a write whose application transaction the version has already. Else ``None``.

    :param txn: as the caller gave it. Raises :class:`FrameError` if it cannot be one.
    """
    return _repeated(handle, view, _checked_txn(txn))


def _repeated(handle: Handle, view: TableView, txn: tuple[str, int] | None) -> UpsertResult | None:
    if txn is None or txn[0] not in view.snapshot.txns or view.snapshot.txns[txn[0]].version < txn[1]:
        return None
    handle.log.make_durable(view.version)
    return UpsertResult(version=view.version, rows=0, files=0, bytes=0, mode="repeated", seconds=0.0)


def choose_buckets(estimated_bytes: int | None) -> int:
    """The bucket count for a table whose first load has about this many bytes of Arrow data.

    A bucket gets about 128 MiB. A smaller table gets up to 4 buckets of at least 16 MiB, so that it can be loaded and
    compacted in parallel. More buckets than that would cost each read more, in opening small files, than they save.
    If the size is not known, the count is 16. (That of a stream which the write budget holds is known.)
    """
    if estimated_bytes is None:
        return 16
    wanted = max(estimated_bytes / (128 * _MIB), min(4, estimated_bytes / (16 * _MIB)))
    buckets = 1
    while buckets < wanted:
        buckets *= 2
    return buckets


def with_columns_of(
    handle: Handle, begin: TableView, frame_schema: pa.Schema, kind_column: str | None = None
) -> TableView:
    """The version with the columns that a frame adds. The commit adds them to the table.

    Raises :class:`FrameError` for a name that a column had before it was renamed or dropped: the frame is one of then.
    """
    former = begin.config.names.former
    if told := [former[name.lower()].told(name) for name in frame_schema.names if name.lower() in former]:
        add = in_python(" (table.alter(add_columns=...))")
        raise FrameError(
            f"the frame's columns cannot be added: {'; '.join(told)}. Give the columns their new names, leave dropped "
            f"ones out, or add a column of that name yourself{add}",
            columns=tuple(name for name in frame_schema.names if name.lower() in former),
        )
    try:
        schema = with_columns_of_frame(
            begin.config.schema, frame_schema, kind_column=kind_column, max_columns=handle.settings.max_columns
        )
    except SchemaError as error:
        raise FrameError(f"the frame's columns cannot be added: {error.message}", **error.facts) from error
    return TableView(begin.snapshot, begin.config.with_schema(schema), handle.store, handle.decoded)


def plan_frame(
    schema: pa.Schema,
    config: TableConfig,
    merger: Merger,
    *,
    kind_column: str | None = None,
    deletes: bool = False,
    states: bool = False,
    differs: bool = False,
) -> FramePlan:
    """Match a frame's schema with the table's. Raises one :class:`FrameError` that lists all problems.

    If the frame says which columns each record carries, all records carry the key, the ordering and what is NOT NULL.

    :param schema: the frame's, without the column of bits.
    :param deletes: whether every row is a delete (``LakeTable.delete``).
    :param states: see :attr:`FramePlan.states`.
    :param differs: see :attr:`FramePlan.differs`.
    """
    shape = config.shape
    problems: list[str] = []
    kind_name = KIND_COLUMN if states else _find_kind_column(schema, kind_column, problems)
    there, given = _there(schema), {field.name.lower(): field.name for field in schema if field.name != kind_name}
    problems += [
        f"key column {name!r} is missing{there}{did_you_mean(name, given.values())}"
        for name in config.key
        if name.lower() not in given
    ]
    lacks = [name for name in config.schema.names if name.lower() not in given]
    remedy = "" if deletes else f"; upsert with {argument('merge_schema', True)} to add it"
    names = {name.lower(): name for name in config.schema.names}
    sources: dict[str, pa.Field] = {}
    for column in schema:
        if column.name == kind_name:
            continue
        target = names.get(column.name.lower())
        if target is None:
            known = ""
            if len(problems) < _HINTS:
                known = f"; the table has {', '.join(config.schema.names)}{did_you_mean(column.name, lacks)}"
            was = config.names.former.get(column.name.lower())
            problems.append(f"unknown column {column.name!r}{known}{remedy}" if was is None else was.told(column.name))
        elif target in sources:
            problems.append(
                f"columns {sources[target].name!r} and {column.name!r} are both {target!r}: drop or rename one of them"
            )
        else:
            sources[target] = column
            wanted = config.schema.field(target).type
            if not castable(column.type, wanted):
                problems.append(_misfit(column, config.schema.field(target), remedy))
    ordering = config.ordering if merger.traits(shape).uses_ordering else ()
    missing = [name for name in ordering if name not in sources]
    required = [f.name for f in config.schema if not f.nullable and f.name not in sources and f.name not in config.key]
    lacking = f"upserts need the ordering column(s) {', '.join(missing)}{there}" if missing else None
    unfilled = f"upserts need the NOT NULL column(s) {', '.join(required)}{there}" if required else None
    may_delete = merger.may_delete(shape, sources)
    if missing and len(missing) < len(ordering):
        problems.append(
            f"ordering column(s) {', '.join(missing)} are missing; a frame carries all ordering columns, or none if it "
            "only deletes"
        )
    elif kind_column is None and not deletes and not states and (lacking is not None or not may_delete):
        problems += [text for text in (lacking, unfilled) if text is not None]
    if problems:
        raise FrameError("the frame does not fit the table: " + "; ".join(problems), problems=tuple(problems))
    carried = [field for field in config.schema if field.name in sources]
    return FramePlan(
        sources=tuple(sources[field.name].name for field in carried),
        types=tuple(sources[field.name].type for field in carried),
        schema=pa.schema(carried),
        kind_column=kind_name,
        default_kind=RowKind.DELETE if deletes else RowKind.UPDATE_AFTER,
        shape=shape,
        full=len(carried) == len(config.schema) and not differs,
        lacking=lacking,
        missing=unfilled,
        states=states,
        differs=differs,
        checks=checks_of(config.constraints, config.schema),
    )


def _checked_txn(txn: Any) -> tuple[str, int] | None:
    """The ``txn`` as plain Python values. Raises :class:`FrameError`."""
    if txn is None:
        return None
    if isinstance(txn, OwnTxn):
        return txn.app, txn.number
    app: Any = None
    number: Any = None
    if isinstance(txn, tuple) and len(txn) == 2:
        app, number = txn
    # A commit file whose txn is not a 64-bit integer could never be read again. So not even True passes for 1.
    whole = type(number) is not bool and isinstance(number, numbers.Integral) and 0 <= int(number) < 2**63
    if not (isinstance(app, str) and app and whole):
        wanted = "(application id, number from 0 on), such as ('nightly-load', 42)"
        raise FrameError(f"{argument('txn')} must be {wanted}, not {shown(txn)}")
    if app.startswith("lakemerge."):
        raise FrameError(
            f"application ids that begin with 'lakemerge.' are the library's own; {app!r} is not yours: take another "
            "name"
        )
    try:
        app.encode()
    except UnicodeEncodeError as error:
        raise FrameError(f"the application id {app!r} cannot be encoded as UTF-8: {error}") from error
    return str(app), int(number)  # plain types instead of numpy's


def _without_bits(schema: pa.Schema) -> tuple[pa.Schema, bool]:
    """A frame's columns without that of bits (:mod:`lakemerge.write.carried`), and whether it has that one. A column
    that only has its name is a column like others."""
    place = schema.get_field_index(CARRIED.name)
    if place < 0 or not schema.field(place).equals(CARRIED, check_metadata=True):
        return schema, False
    return pa.schema([field for field in schema if field.name != CARRIED.name], schema.metadata), True


def _find_kind_column(schema: pa.Schema, kind_column: str | None, problems: list[str]) -> str | None:
    if kind_column is None:
        return None
    found = [field for field in schema if field.name.lower() == kind_column.lower()]
    if len(found) != 1:
        problems.append(f"kind column {kind_column!r} is {'twice' if found else 'not'} in the frame{_there(schema)}")
        return None
    kind = found[0].type
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(value) or pa.types.is_large_string(value) or pa.types.is_string_view(value)):
        problems.append(
            f"kind column {kind_column!r} is {type_name(kind)}; it must hold the strings {', '.join(SYMBOLS)}"
        )
    return found[0].name


def _there(schema: pa.Schema) -> str:
    return f"; the frame has {', '.join(name for name in schema.names if name != KIND_COLUMN) or 'no columns'}"


def _misfit(field: pa.Field, wanted: pa.Field, remedy: str) -> str:
    text = f"column {field.name!r} is {type_name(field.type)}, the table's is {type_name(wanted.type)}"
    before = pa.schema([wanted])
    grown = with_schema(before, pa.schema([field]))
    if remedy and castable(field.type, grown.field(0).type):
        return f"{text}, without {', '.join(map(repr, new_columns(before, grown)))}{remedy}"
    if pa.types.is_floating(field.type) and pa.types.is_integer(wanted.type):
        gaps = "pandas makes floats of integers with gaps, unless their type is 'Int64'"
        return f"{text}; cast it to integers first ({gaps})"
    if pa.types.is_timestamp(field.type) and field.type.tz is None and pa.types.is_timestamp(wanted.type):
        return (
            f"{text}; say of which zone its times are: .dt.tz_localize('UTC') in pandas, "
            ".dt.replace_time_zone('UTC') in polars, pyarrow.compute.assume_timezone in Arrow"
        )
    return f"{text}; cast it first"
