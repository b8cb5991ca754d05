"""A table that is made together with its rows, in one commit: ``CREATE TABLE ... AS SELECT``.

Source: docs/table-format.md, section 4. The rows are written first, as a first load writes them. The commit defines the
table and adds them, so there is a table with all of its rows, or none; one that is replaced keeps its history.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from lakemerge.commits.base import with_buckets
from lakemerge.commits.replace import replacement
from lakemerge.commits.rescale import reserve_ordinals
from lakemerge.delta import AlreadyDone, Attempt, Snapshot
from lakemerge.errors import CommitConflictError, NotATableError, TableExistsError
from lakemerge.format.base_file import BaseFile
from lakemerge.format.names import STATE_DOMAIN
from lakemerge.format.operations import Operation
from lakemerge.format.state import State
from lakemerge.handle import Handle
from lakemerge.layout.view import TableView, build_file_slices
from lakemerge.table.create import Definition, check_replaces
from lakemerge.table.opening import find_snapshot
from lakemerge.write.base_file import ordinals_needed
from lakemerge.write.discard import discard_packed
from lakemerge.write.pack import Packed
from lakemerge.write.start import Write
from lakemerge.write.upsert import LoadFileSlices, discarding

__all__ = ["StagedTable"]


@dataclass(frozen=True, slots=True)
class StagedTable:
    """A table that is not there yet, or not in its place yet."""

    handle: Handle
    definition: Definition
    before: Snapshot | None
    """The table that is replaced; ``None``: there is none."""
    may_replace: bool

    @staticmethod
    def of(handle: Handle, definition: Definition, *, replace: bool, must_exist: bool) -> StagedTable:
        """
        :raises lakemerge.TableExistsError: there is a table, and it is not to be replaced.
        :raises lakemerge.NotATableError: there is none, and one is to be replaced.
        """
        before = find_snapshot(handle) if handle.log.exists() else None
        if before is not None:
            check_replaces(handle, before, replace=replace)
        elif must_exist:
            raise NotATableError(f"there is no table at {handle.store.url} to replace")
        return StagedTable(handle, definition, before, replace)

    @property
    def begin(self) -> TableView:
        """The new table without rows, at the version of the present one."""
        state = State() if self.before is None else self.handle.view(self.before).state
        snapshot = Snapshot(
            version=0 if self.before is None else self.before.version,
            timestamp_ms=self.handle.now_ms(),
            protocol=self.definition.protocol,
            metadata=self.definition.metadata,
            files={},
            tombstones={},
            txns={},
            domains={STATE_DOMAIN: state.domain()},
            checkpoint_version=None,
        )
        return self.handle.view(snapshot)

    def finish(self, write: Write, packed: Sequence[Packed], *, begun: int, load: LoadFileSlices) -> int:
        """Merge what the tasks packed into base files, and commit the table with these. Returns the version.

        :param begun: the version at which the write began, which is in the names of its files.
        """
        blocks = [block for task in packed for block in task.blocks]
        rows = sum(task.rows for task in packed)
        with discarding(write):
            staged = [dataclasses.replace(block, version=write.begin.version + 1) for block in blocks]
            file_slices = list(build_file_slices([], staged, buckets=write.pack.buckets))
            ordinals = sum(ordinals_needed(part.stored_bytes, write.pack.settings) for part in file_slices)
            if self.before is not None and ordinals:
                reserved = reserve_ordinals(self.handle, self.handle.view(self.before), ordinals)
                write = dataclasses.replace(write, reserved=reserved)
            adds = load(write, file_slices) if file_slices else []
            config = self.definition.config
            bases = [BaseFile.of(add, config.stored_partition_by) for add in adds]
            metadata = self.definition.metadata
            if adds and config.buckets is None:
                metadata = with_buckets(metadata, config, write.pack.buckets)
            metrics = {
                "numSourceRows": rows,
                "numFiles": len(adds),
                "numOutputBytes": sum(add.size_bytes for add in adds),
            }

            def build(tip: Snapshot | None) -> Attempt | AlreadyDone:
                if tip is None:
                    state = State().reserving(ordinals) if ordinals else State()
                    files = [base.merged_to(0) for base in bases]
                    return Attempt([self.definition.protocol, metadata, state.domain(), *files], metrics)
                if self.before is None:
                    raise TableExistsError(f"another writer made a table at {self.handle.store.url} meanwhile")
                check_replaces(self.handle, tip, replace=self.may_replace)
                view = self.handle.view(tip)
                if view.state.fence_begin_version > begun:
                    raise CommitConflictError(
                        "a vacuum took the rows that were written for the new table: run it again"
                    )
                made = replacement(view, metadata, self.definition.protocol, self.handle.now_ms())
                files = [base.merged_to(tip.version) for base in bases]
                return Attempt([*made.actions, *files], {**made.metrics, **metrics})

            # As in Delta, a commit that may replace a table says so, whether there was one or not.
            operation = Operation.CREATE_AS_SELECT if not self.may_replace else Operation.REPLACE_AS_SELECT
            outcome = self.handle.log.commit(
                None,
                build,
                operation=operation,
                parameters=self.definition.parameters,
                transaction=write.provenance.transaction,
            )
        discard_packed(self.handle.store, write.pack.name)
        if isinstance(outcome, AlreadyDone):
            raise AssertionError("creating a table is never done already")
        return outcome.snapshot.version
