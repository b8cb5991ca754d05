"""Conversions in tasks of Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from lakemerge.convert.converting import load_job, pack_files
from lakemerge.convert.source import DeltaSource
from lakemerge.delta import AddFile
from lakemerge.layout.view import FileSlice
from lakemerge.spark.transport.jobs import bins, map_in_tasks, parallelism
from lakemerge.write.pack import Packed, PackSpec
from mergers import Merger

__all__ = ["OnSpark"]


@dataclass(frozen=True, slots=True)
class OnSpark:
    """A :class:`lakemerge.convert.converting.Engine` whose tasks are Spark's."""

    spark: SparkSession

    def pack(self, source: DeltaSource, spec: PackSpec, merger: Merger, adds: Sequence[AddFile]) -> list[Packed]:
        sizes = [add.size_bytes for add in adds]
        target = spec.settings.target_task_bytes
        # Files of a task stay in order, so that it does not matter how many tasks there are.
        tasks = bins(sizes, target_bytes=target, at_least=parallelism(self.spark))
        given = [(number, [adds[place] for place in sorted(task)]) for number, task in enumerate(tasks) if task]
        return map_in_tasks(
            self.spark,
            lambda task: pack_files(source, spec, merger, task[1], task[0]),
            given,
            sizes=[sum(add.size_bytes for add in own) for _, own in given],
            target_bytes=target,
        )

    def load(
        self, spec: PackSpec, version: int, jobs: Sequence[tuple[FileSlice, int]]
    ) -> list[tuple[list[AddFile], Mapping[str, object] | None]]:
        if not jobs:
            return []
        return map_in_tasks(
            self.spark,
            lambda job: load_job(spec, version, job),
            jobs,
            sizes=[file_slice.stored_bytes for file_slice, _ in jobs],
            target_bytes=spec.settings.target_task_bytes,
        )
