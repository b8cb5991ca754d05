"""Reads a version through LakeMerge's own scan: Spark's Parquet reader with the rows of files that the version has.

The plan is made here, and is JSON: the scan is in the jar (``connector/``, ``NativeScan``). File slices that need the
kernel are parts in it, and ``format("lakemerge")`` merges these in more tasks of the same scan.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import hashlib
import importlib
import tempfile
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

import numpy as np
import orjson
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lakemerge._internal.cache import Cache
from lakemerge._internal.collector import collector_paused
from lakemerge._internal.pools import thread_pool
from lakemerge.format.config import TableConfig
from lakemerge.format.keys import Key
from lakemerge.handle import Handle
from lakemerge.layout.partition import parse_partition_value
from lakemerge.layout.view import FileSlice, TableView
from lakemerge.options import ReadPolicy, Settings
from lakemerge.read.merge import MergeSpec
from lakemerge.read.premerge import Premerged, premerge, premerged_bytes
from lakemerge.read.splits import split_file_slices
from lakemerge.read.stored_rows import SelectedFile, StoredRows, merged_files, stored_rows
from lakemerge.schema.schema import to_delta_json
from lakemerge.spark.jar import CATALOG_CLASS, PATHS, SWITCH, is_forbidden, jar_class
from lakemerge.spark.names import quoted
from lakemerge.spark.sessions import jvm_session, session_id, why_unplanned
from lakemerge.spark.transport.answers import packed
from lakemerge.spark.transport.jobs import map_evenly, parallelism
from lakemerge.spark.transport.sending import pickled, pickled_once
from lakemerge.storage import LocalStore, S3Store, Store
from mergers import default_registry
from mergers.logs import logger

__all__ = [
    "KERNEL_OPTION",
    "KernelRead",
    "KernelTasks",
    "are_kept",
    "kept_rows",
    "named_frame",
    "native_frame",
    "plan_json",
    "reachable",
    "why_not_kernel",
    "why_not_native",
]

_LOG = logger(__name__)
_FRAMES: Final = "lakemerge.spark.NativeFrames"
_SETTING: Final = "spark.lakemerge.nativeReads"
KERNEL_OPTION: Final = "lakemerge.kernel"
"""The option of ``format("lakemerge")`` that has a :class:`KernelRead`."""
_EXPECTED: Final = "tableId"
"""An option of a catalog's read: which table it must be."""
_ENTRY_BYTES: Final = 512
_FILE_BYTES: Final = 32 * 2**20
_PREMERGE_BYTES: Final = 96 * 2**20
_files: Cache[tuple[Hashable, ...], Sequence[SelectedFile]] = Cache(_FILE_BYTES, _ENTRY_BYTES)
_premerges: Cache[tuple[Hashable, ...], Premerged] = Cache(_PREMERGE_BYTES, _ENTRY_BYTES)
"""What reads found of file slices, for all tables that are open in this process: a table that is opened anew begins
with it, and so does a read with another filter."""
_frames: dict[str, Any] = {}
"""Session -> what makes frames in its JVM, or why there is none."""

SliceName = tuple[tuple[str | None, ...], int, str | None]


def _name_of(file_slice: FileSlice) -> SliceName:
    """What tells a file slice from all others of its version."""
    base = None if file_slice.base is None else file_slice.base.add.path
    return file_slice.bucket_id.partition, file_slice.bucket_id.bucket, base


def _state_of(file_slice: FileSlice) -> tuple[Hashable, ...]:
    """What tells a file slice from those that other modes of reading have of the same version."""
    minor = file_slice.minor
    return *_name_of(file_slice), file_slice.merged_through, len(file_slice.blocks), minor and minor.superseded_key


@dataclasses.dataclass(frozen=True, slots=True)
class KernelRead:
    """How tasks of ``format("lakemerge")`` merge the parts of file slices that a plan gives them."""

    settings: Settings
    filter: str | None = None
    """The text of a condition that all wanted rows meet."""
    zone: str | None = None
    """The zone of times in it that name none."""
    computed: bool = True
    """Whether the computed parts of the condition count."""

    def to_json(self) -> str:
        return orjson.dumps(dataclasses.asdict(self)).decode()

    @staticmethod
    def of_json(text: str) -> KernelRead:
        body = orjson.loads(text)
        settings = body["settings"]
        return KernelRead(**{**body, "settings": Settings(**{**settings, "reads": ReadPolicy(**settings["reads"])})})


@dataclasses.dataclass(frozen=True, slots=True)
class KernelTasks:
    """The tasks of a plan's kernel."""

    read: KernelRead
    at_least: int
    """How many tasks the cluster runs at a time."""
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Those of ``format("lakemerge")`` that say which version is read."""


# Whether it can be read so


def why_not_native(spark: SparkSession, view: TableView) -> str | None:
    """Why a session does not read a table's files by LakeMerge's own scan; ``None`` if it does."""
    session = jvm_session(spark)
    if session is None:
        return _why_not_named(spark, view.store)
    if is_forbidden():
        return f"{SWITCH}=off in the environment"
    frames = _frames_of(spark)
    if isinstance(frames, str):
        return frames
    found = frames.refusal(session, to_delta_json(view.config.schema))
    return None if found is None else str(found)


def _why_not_named(spark: SparkSession, store: Store) -> str | None:
    """Why a client of Spark Connect does not name a table to its server's catalog; ``None`` if it does."""
    prefix = f"spark.sql.catalog.{PATHS}"
    if spark.conf.get(prefix, None) != CATALOG_CLASS:
        return "a client of Spark Connect makes no scans by itself; call lakemerge.catalog, and the server does"
    if not isinstance(store, LocalStore) or spark.conf.get(f"{prefix}.allowedPaths", None):
        return "the server's catalog has options and permissions of its own: name the table there"
    if str(spark.conf.get(_SETTING, "on")).lower() == "off":
        return f"{_SETTING}=off in the session"
    return None


def named_frame(spark: SparkSession, handle: Handle, view: TableView, columns: Sequence[str]) -> DataFrame:
    """The rows by the scan of a catalog, for a client of Spark Connect. The server plans the read.

    :param columns: at least one.
    """
    table = f"{PATHS}.{quoted(handle.store.url)} VERSION AS OF {view.version}"
    expected = f"WITH ('{_EXPECTED}' = '{view.snapshot.metadata.id}')"
    return spark.sql(f"SELECT {', '.join(map(quoted, columns))} FROM {table} {expected}")  # noqa: S608 - quoted names


def _frames_of(spark: SparkSession) -> Any:
    key = session_id(spark)
    if key not in _frames:
        try:
            _frames[key] = jar_class(spark, _FRAMES)
        except (importlib.import_module("py4j.protocol").Py4JError, PySparkException) as error:
            _frames[key] = f"Spark does not load LakeMerge's jar: {str(error).strip().splitlines()[0]}"
            _LOG.info("tables are read without LakeMerge's own scan: %s", _frames[key])
    return _frames[key]


def why_not_kernel(spark: SparkSession, handle: Handle, spec: MergeSpec) -> str | None:
    """Why tasks of the scan cannot run the kernel; ``None`` if they can. They open the table anew, and know mergers
    that are installed."""
    if not isinstance(handle.store, LocalStore):
        return "logs of a table that is not in a local folder are merged in other tasks"
    if spec.leave_out is not None:
        return "keys whose merge fails are left out"
    if not any(known is type(spec.merger) for known in default_registry()):
        return "the merger is not an installed one"
    return why_unplanned(spark)


def reachable(store: Store) -> tuple[str | None, Mapping[str, str]]:
    """Why Spark's reader cannot reach the files of a store, as far as the store's options say, and the options of
    Hadoop's file systems with which it does."""
    if isinstance(store, LocalStore):
        return None, {}
    if not isinstance(store, S3Store):
        return "Spark's own reader is used on local folders and on S3 alone", {}
    if store.s3a.unknown:
        return f"Hadoop's S3A has no counterpart of {', '.join(store.s3a.unknown)} in the storage options", {}
    return None, store.s3a.options


# Plans


def kept_rows(
    handle: Handle,
    view: TableView,
    spec: MergeSpec,
    file_slices: Sequence[FileSlice],
    spark: SparkSession | None,
    *,
    columns: Sequence[str] = (),
    first: Sequence[FileSlice] = (),
) -> StoredRows:
    """See :func:`lakemerge.read.stored_rows.stored_rows`. The process keeps what it finds of each file slice for later
    reads of the version. What a read of all keys has found does not serve look-ups: it names all logs that have rows of
    the file slice, and a look-up merges its keys in less time than Spark takes to open these.

    :param spark: the session whose tasks premerge where there is much to do. By default, this process does.
    :param columns: those of computed rows that are merged first.
    """
    key_of = partial(_key, handle, view, spec)

    def files_of(file_slice: FileSlice) -> Sequence[SelectedFile]:
        key = key_of(file_slice)
        found = None if key is None else _files.get(key)
        if found is None:
            found = merged_files(handle, file_slice)
            if key is not None:
                _files.keep(key, found, sum(file.words.nbytes for file in found if file.words is not None))
        return found

    def premerged(due: Sequence[FileSlice], *, only_places: bool) -> Sequence[Premerged]:
        keys = [key_of(file_slice, () if only_places else columns) for file_slice in due]
        found = [None if key is None else _premerges.get(key) for key in keys]
        places = [place for place, part in enumerate(found) if part is None]
        merged = _premerged(spec, spark, columns, [due[place] for place in places], only_places) if places else ()
        for place, part in zip(places, merged, strict=True):
            found[place], key = part, keys[place]
            if key is not None:
                _premerges.keep(key, part, part.size_bytes)
        return [part for part in found if part is not None]

    return stored_rows(handle, spec, file_slices, premerged, first, files_of)


def are_kept(
    handle: Handle, view: TableView, spec: MergeSpec, columns: Sequence[str], first: Sequence[FileSlice]
) -> bool:
    """Whether an earlier read has found the rows of all these file slices."""
    keys = [_key(handle, view, spec, file_slice, columns) for file_slice in first]
    return all(key is not None and _premerges.get(key) is not None for key in keys)


def _key(
    handle: Handle, view: TableView, spec: MergeSpec, file_slice: FileSlice, columns: Sequence[str] = ()
) -> tuple[Hashable, ...] | None:
    """What tells a file slice, or the part of one that a read wants, from all others. ``None`` if the caller has the
    rows of keys left out whose merge fails."""
    if file_slice.sought is not None or spec.leave_out is not None:
        return None
    # A folder that somebody brought back from a backup has other commits under the same numbers.
    version = (view.version, view.snapshot.digest)
    table = (handle.store.url, view.snapshot.metadata.id, *version, type(spec.merger))
    part: tuple[Hashable, ...] = ()
    if file_slice.wanted is not None and file_slice.blocks:
        blocks = tuple((each.file.path, each.first_row_group, each.version) for each in file_slice.blocks)
        part = (file_slice.wanted, blocks)
    return (*table, *_state_of(file_slice), *part, *columns)


def _premerged(
    spec: MergeSpec,
    spark: SparkSession | None,
    columns: Sequence[str],
    due: Sequence[FileSlice],
    only_places: bool,
) -> Sequence[Premerged]:
    names = [spec.config.key[0]] if only_places else columns
    work = partial(premerge, spec=spec, columns=names, pick=only_places, only_places=only_places, compressed=False)
    if spark is None:
        with thread_pool(spec.settings.threads) as pool:
            return list(pool.map(work, due))
    return map_evenly(
        spark,
        partial(_unpickled, work),
        [pickled(file_slice) for file_slice in due],
        sizes=[premerged_bytes(file_slice, spec, only_places=only_places) for file_slice in due],
        settings=spec.settings,
    )


def _unpickled(work: Any, file_slice: bytes) -> Premerged:
    import pickle

    found: Premerged = work(pickle.loads(file_slice))  # noqa: S301 - our own driver's bytes
    return found


@collector_paused()
def plan_json(
    rows: StoredRows, store: Store, kernel: KernelTasks | None, config: TableConfig | None = None
) -> dict[str, Any]:
    """The plan for the scan in the jar. Each property of files is one list: that is faster to write and to read.

    :param kernel: ``None`` if no file slice is for the kernel.
    :param config: of the table. Without it, files are of no file slices.
    """
    files = rows.files
    words = [file.words for file in files if file.words is not None]
    told: dict[str, Any] = {
        "urls": [store.spark_url(file.path) for file in files],
        "bytes": [file.size_bytes for file in files],
        "rows": [-1 if file.rows is None else file.rows for file in files],
        "wanted": [file.wanted for file in files],
        "words": [-1 if file.words is None else len(file.words) for file in files],
        "skipped": [file.skipped for file in files],
        "keeps": [file.keeps for file in files],
    }
    plan: dict[str, Any] = {
        "files": told,
        "bits": packed(np.concatenate(words).tobytes() if words else b""),
        "streams": [len(stream) for stream in rows.streams],
        "streamRows": rows.stream_rows,
    }
    if kernel is not None:
        parts = split_file_slices(rows.kernel, kernel.read.settings.target_task_bytes)
        firsts = [part for part in parts if part.number == 0]
        sent = [pickled_once(part.file_slice) for part in firsts]
        plan["kernel"] = {
            "options": {KERNEL_OPTION: kernel.read.to_json(), **kernel.options},
            "rows": sum(each.stored_rows + sum([block.rows for block in each.blocks]) for each in rows.kernel),
            "fileSlices": packed(b"".join(sent)),
            "lengths": [len(each) for each in sent],
            "counts": [part.count for part in firsts],
            "bytes": [part.stored_bytes for part in firsts],
            "atLeast": kernel.at_least,
            "taskBytes": kernel.read.settings.target_task_bytes,
        }
    if config is not None:
        names = config.names
        plan["fileNames"] = {name: stored for name, stored in names.stored.items() if name != stored}
        slices = _Slices(config)
        told["slices"] = [slices.number(owner) for owner in rows.owners]
        plan["streamSlices"] = [slices.number(file_slice) for file_slice in rows.stream_owners]
        if kernel is not None:
            plan["kernel"]["slices"] = [slices.number(part.file_slice) for part in firsts]
        plan["slices"] = slices.told()
    return plan


class _Slices:
    """File slices with the numbers that a plan gives them."""

    def __init__(self, config: TableConfig) -> None:
        self._config = config
        kind = config.schema.field(config.key[0]).type
        self._is_other = pa.types.is_decimal(kind) or pa.types.is_boolean(kind) or pa.types.is_binary(kind)
        self._numbers: dict[int, int] = {}
        """By the identity of file slices, which is looked up faster than their names."""
        self._told: list[tuple[int, int, int, object, object]] = []
        self._partitions: dict[tuple[str | None, ...], int] = {}

    def number(self, file_slice: FileSlice) -> int:
        found = self._numbers.get(id(file_slice))
        if found is None:
            found = self._numbers[id(file_slice)] = len(self._told)
            of, bucket = file_slice.bucket_id
            partition = self._partitions.setdefault(of, len(self._partitions))
            lower, upper = self._first(file_slice.lower), self._first(file_slice.upper)
            self._told.append((partition, bucket, file_slice.buckets, lower, upper))
        return found

    def _first(self, bound: Key | None) -> object:
        """The value of a bound's first column, if it is as Spark has it: keys have decimals and truth values as
        integers."""
        return None if not bound or self._is_other else bound[0]

    def told(self) -> dict[str, object]:
        config, by = self._config, self._config.partition_by
        kinds = [config.schema.field(name).type for name in by]
        columns = [config.schema.field(name) for name in dict.fromkeys((*by, *config.key))]
        return {
            "columns": to_delta_json(pa.schema(columns)),
            "partitionBy": list(by),
            "key": list(config.key),
            "partitions": [
                [
                    None if value is None else _internal(parse_partition_value(value, kind))
                    for value, kind in zip(partition, kinds, strict=True)
                ]
                for partition in self._partitions
            ],
            "slices": self._told,
        }


_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def _internal(value: object) -> object:
    """A value as Spark has it, for JSON: days and microseconds since 1970, and decimals as text."""
    if isinstance(value, dt.datetime):
        instant = value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)
        return (instant - _EPOCH) // dt.timedelta(microseconds=1)
    if isinstance(value, dt.date):
        return value.toordinal() - _EPOCH.toordinal()
    return format(value, "f") if isinstance(value, decimal.Decimal) else value


def native_frame(
    spark: SparkSession,
    handle: Handle,
    view: TableView,
    rows: StoredRows,
    columns: Sequence[str],
    read: KernelRead | None,
) -> DataFrame:
    """The rows.

    :param columns: at least one.
    :param read: how tasks merge the file slices of the kernel; ``None`` if there are none.
    """
    kernel = None
    if read is not None:
        version = {"version": str(view.version), "lakemerge.tableId": view.snapshot.metadata.id}
        kernel = KernelTasks(read, parallelism(spark), {"path": handle.store.url, **version})
    schema = pa.schema([view.config.schema.field(name).with_nullable(True) for name in columns])
    plan = {**plan_json(rows, handle.store, kernel, view.config), "schema": to_delta_json(schema)}
    told = {"name": f"{handle.store.url}, version {view.version}", "identity": _identity(rows, plan)}
    plan_text = orjson.dumps({**plan, **told})
    # The logger of calls into the JVM leaves out the values of such options.
    hadoop = cast("Any", spark)._jvm.java.util.HashMap()
    for name, value in reachable(handle.store)[1].items():
        hadoop.put(name, value)
    if not rows.streams:
        return DataFrame(_frames_of(spark).read(jvm_session(spark), plan_text, None, hadoop), spark)
    # A file is faster than the socket between Python and the JVM, which takes text alone.
    with tempfile.NamedTemporaryFile(prefix="lakemerge-rows-") as file:
        for stream in rows.streams:
            file.write(stream)
        file.flush()
        return DataFrame(_frames_of(spark).read(jvm_session(spark), plan_text, file.name, hadoop), spark)


def _identity(rows: StoredRows, plan: Mapping[str, Any]) -> str:
    """The same for the same read. Pickles of equal file slices may differ, so they do not count."""
    kernel = {name: told for name, told in plan.get("kernel", {}).items() if name not in ("fileSlices", "lengths")}
    found = hashlib.sha256(orjson.dumps({**plan, "kernel": kernel}))
    for file_slice in rows.kernel:
        blocks = [(each.file.path, each.first_row_group, each.version) for each in file_slice.blocks]
        found.update(repr((_state_of(file_slice), file_slice.wanted, blocks)).encode())
    for stream in rows.streams:
        found.update(stream)
    return found.hexdigest()
