"""What a task of ``format("lakemerge")`` reads."""

from __future__ import annotations

import pickle
from collections.abc import Iterable

from pyspark.sql.datasource import InputPartition

from lakemerge.read.splits import Part
from lakemerge.spark.transport.sending import pickled

__all__ = ["KernelPartition"]


class KernelPartition(InputPartition):
    """Parts of file slices. The jar, too, writes pickles of it, for native scans (``KernelParts``).

    :param told: of each part the pickled file slice, the part's number, and how many parts the file slice has.
    """

    def __init__(self, *told: bytes | int) -> None:
        super().__init__(None)
        self._told = told

    @staticmethod
    def of(parts: Iterable[Part]) -> KernelPartition:
        told: list[bytes | int] = []
        for part in parts:
            told += (pickled(part.file_slice), part.number, part.count)
        return KernelPartition(*told)

    def parts(self) -> list[Part]:
        """The parts. Nobody needs their sizes any more."""
        file_slices, numbers, counts = self._told[::3], self._told[1::3], self._told[2::3]
        return [
            Part(pickle.loads(file_slice), number, count, 0)  # type: ignore[arg-type] # noqa: S301 - our own driver's bytes
            for file_slice, number, count in zip(file_slices, numbers, counts, strict=True)
        ]
