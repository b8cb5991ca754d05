"""What a read does about keys whose merge fails. By default it raises the error of the first of them.

Source: docs/merge-semantics.md, section 10.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from lakemerge.results.findings import FailedKey, FailedRecord
from mergers import Frame, TableShape
from mergers.failing import Failing, has_keys
from mergers.logs import logger
from mergers.restart import RecordKind

__all__ = ["MOST_FAILING", "LeaveOut", "leave_out", "listed"]

LeaveOut = Callable[[Sequence[FailedKey]], None]
"""Is told which keys are left out of a read."""

MOST_FAILING: Final = 1_000
"""If more keys of a key range fail, the merger is at fault, and its error is raised."""
_MOST_RECORDS: Final = 100
_SHOWN: Final = 3

_logger = logger(__name__)


def leave_out(failed: Sequence[FailedKey]) -> None:
    """Leave the keys out, with a warning in the log."""
    for each in failed[:_SHOWN]:
        _logger.warning("a read skipped key %s: %s", dict(each.key), each.reason)
    if len(failed) > _SHOWN:
        _logger.warning("a read skipped %d more keys whose merge fails", len(failed) - _SHOWN)


def listed(failing: Failing, frames: Sequence[Frame], shape: TableShape) -> list[FailedKey]:
    """The keys, with their records among the frames."""
    found = []
    for place, (key, error) in enumerate(zip(failing.keys.to_pylist(), failing.errors, strict=True)):
        records: list[FailedRecord] = []
        count = 0
        for frame in frames:
            chosen = np.flatnonzero(has_keys(frame.rows, shape, failing.keys.slice(place, 1)))
            count += len(chosen)
            records += _records(frame, chosen[: _MOST_RECORDS - len(records)].tolist())
        column = error.facts.get("column")
        found.append(
            FailedKey(
                key=key,
                code=error.code,
                column=column if isinstance(column, str) else None,
                reason=error.message,
                records=tuple(records),
                more=count - len(records),
            )
        )
    return found


def _records(frame: Frame, places: Sequence[int]) -> Iterator[FailedRecord]:
    names = [name for name in frame.rows.column_names if not name.startswith("_lm_")]
    for place in places:
        kind = RecordKind.UPDATE_AFTER if frame.kinds is None else RecordKind(int(frame.kinds[place]))
        version = frame.version if isinstance(frame.version, int) else int(frame.version[place])
        (values,) = frame.rows.slice(place, 1).select(names).to_pylist()
        yield FailedRecord(version=version, kind=kind.symbol, values=values)
