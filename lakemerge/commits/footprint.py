"""What a transaction wrote, and whether a later commit conflicts with it.

A transaction reads at one version. It may land if no commit since then wrote one of its keys. So an upsert of other
keys never stands in its way. Source: docs/table-format.md, section 4.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pyarrow as pa

from lakemerge.commits.provenance import Isolation
from lakemerge.delta import Action, AddFile, DomainMetadata
from lakemerge.errors import CommitConflictError, TableDamagedError, VersionNotFoundError
from lakemerge.format.block_index import DecodedLogs, log_version
from lakemerge.format.log_block import LogBlock
from lakemerge.format.names import LOG_DOMAIN_PREFIX
from lakemerge.handle import Handle
from lakemerge.layout.view import TableView
from lakemerge.read.parquet.files import ParquetFiles, StoredFile
from mergers.keys import group_starts, key_columns, locate, sort_order
from mergers.portions import gather

__all__ = ["Footprint", "RowsChangedError"]

_SHOWN_KEYS = 3
_BUDGET_BYTES = 64 * 1024 * 1024
_KEPT_BYTES = 256 * 1024 * 1024
"""Up to so many bytes of a transaction's own keys are kept for the next comparison. Others are read again."""


class RowsChangedError(CommitConflictError):
    """A later commit conflicts with a transaction, which has to run again on the new version."""

    code = "rows-changed"


class Footprint:
    """The keys that a transaction wrote, and the commits that were compared with them so far."""

    def __init__(self, handle: Handle, begin: TableView, blocks: Sequence[LogBlock], isolation: Isolation) -> None:
        """
        :param begin: the version that the transaction read.
        :param blocks: the blocks that it wrote.
        """
        self._handle = handle
        self._begin = begin
        self._isolation = isolation
        self._checked = begin.version
        self._own: dict[object, list[LogBlock]] = defaultdict(list)
        for block in blocks:
            self._own[block.bucket_id.partition].append(block)
        self._keys: dict[LogBlock, pa.Table] = {}

    def check(self, tip: TableView) -> None:
        """Compare with the commits up to ``tip`` that were not compared yet.

        Raises :class:`RowsChangedError`, which names some keys that both wrote.
        """
        if tip.version <= self._checked:
            return
        if tip.state.overwrite_epoch != self._begin.state.overwrite_epoch:
            raise RowsChangedError(f"rows of the table were overwritten after version {self._begin.version}")
        try:
            for version, actions in self._handle.log.commits(since=self._checked, until=tip.version):
                self._check_commit(version, actions)
        except VersionNotFoundError as error:
            raise RowsChangedError(
                f"the commits after version {self._checked} were cleaned up, so it is not known what they wrote"
            ) from error
        self._checked = tip.version

    def _check_commit(self, version: int, actions: Sequence[Action]) -> None:
        # Files of an empty table are a first load. Any others have rows of logs, or of files before them. Only restores
        # and replacements make a table empty again.
        if self._begin.is_empty and any(isinstance(action, AddFile) for action in actions):
            raise RowsChangedError(f"version {version} loaded the first rows of the table")
        # A consolidated log has records of earlier commits, which were compared as themselves.
        logs = [action for action in actions if isinstance(action, DomainMetadata) and _is_of(action, version)]
        if not logs:
            return
        try:
            self._check_logs(version, logs)
        except (FileNotFoundError, TableDamagedError) as error:
            raise RowsChangedError(
                f"the records of version {version} cannot be read any more, so it is not known which keys they have: "
                f"{error}"
            ) from error

    def _check_logs(self, version: int, logs: Sequence[DomainMetadata]) -> None:
        decoded = DecodedLogs().read(logs, self._handle.store, self._begin.key_kinds)
        theirs = [block for log in decoded if log.packed_from is None for block in log.blocks]
        if self._isolation == "serializable" and theirs:
            raise RowsChangedError(f"version {version} wrote rows, and the transaction is serializable")
        for block in theirs:
            for own in self._own.get(block.bucket_id.partition, ()):
                if own.covers(block.bucket_id, block.buckets) and _may_meet(own, block):
                    self._compare(version, own, block)

    def _compare(self, version: int, own: LogBlock, theirs: LogBlock) -> None:
        mine, others = self._own_keys(own), self._keys_of(theirs)
        key = self._begin.config.key
        _, met = locate(key_columns(mine, key), key_columns(others, key))
        if met.any():
            found = others.filter(pa.array(met)).slice(0, _SHOWN_KEYS).to_pylist()
            raise RowsChangedError(
                f"version {version} wrote {int(met.sum())} of the transaction's keys, such as "
                f"{', '.join(map(str, found))}",
                version=version,
                keys=tuple(found),
            )

    def _own_keys(self, own: LogBlock) -> pa.Table:
        if own in self._keys:
            return self._keys[own]
        keys = self._keys_of(own)
        if sum(kept.nbytes for kept in self._keys.values()) + keys.nbytes <= _KEPT_BYTES:
            self._keys[own] = keys
        return keys

    def _keys_of(self, block: LogBlock) -> pa.Table:
        """The keys of a block, each once, sorted."""
        config = self._begin.config
        schema = pa.schema([config.schema.field(name).with_nullable(True) for name in config.key])
        stored = StoredFile(block.file.path, block.file.size_bytes)
        with ParquetFiles(self._handle.store) as files:
            stream = files.stream(
                stored, schema=schema, names=config.names, budget_bytes=_BUDGET_BYTES, row_groups=list(block.groups)
            )
            rows = pa.concat_tables([schema.empty_table(), *(table for table, _, _ in stream)])
        columns = key_columns(rows, config.key)
        order = sort_order(columns)
        ordered = gather(rows, order)
        return ordered.take(pa.array(group_starts(key_columns(ordered, config.key))))


def _is_of(domain: DomainMetadata, version: int) -> bool:
    """Whether the domain holds log records that this version committed."""
    return domain.domain.startswith(LOG_DOMAIN_PREFIX) and not domain.removed and log_version(domain) == version


def _may_meet(one: LogBlock, other: LogBlock) -> bool:
    """Whether the blocks may have a key in common, as far as their bounds say."""
    if one.key_min is not None and other.key_max is not None and other.key_max < one.key_min:
        return False
    return not (one.key_max is not None and other.key_min is not None and one.key_max < other.key_min)
