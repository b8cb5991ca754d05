"""Many damaged files, one after the other, in few tables."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from tests.property.damage import READERS, damaged, make_whole, outcome, targets

__all__ = ["fuzz"]

WRITING = 8
"""One of so many damaged tables is also compacted and vacuumed, in a copy."""
SLICED = 4
"""One of so many is that of several buckets, which takes longer to read and shows as much."""


def fuzz(folder: Path, seed: object, inputs: int) -> int:
    """Damage so many files; how many. Raises :class:`AssertionError` naming the file where the outcome is neither an
    answer nor an error of ours, or a file outside the table was touched."""
    dice = random.Random(f"damage {seed}")
    copy, outside = folder / "copy", folder / "outside.parquet"
    wholes = {}
    for sliced in (False, True):
        whole = folder / ("sliced" if sliced else "whole")
        make_whole(whole, sliced=sliced)
        wholes[whole] = _content(whole)
    outside.write_bytes(b"not ours")
    for number in range(inputs):
        whole = folder / ("whole" if dice.randrange(SLICED) else "sliced")
        writes = dice.randrange(WRITING) == 0
        who = ("rows", "compaction", "vacuum") if writes else ("rows", dice.choice([*READERS]))
        table = Path(shutil.copytree(whole, copy)) if writes else whole
        file = dice.choice(targets(table))
        before, changed = file.read_bytes(), damaged(file, dice)
        file.write_bytes(changed)
        try:
            outcome(table, who)
        except Exception as error:
            raise AssertionError(f"input {number}: {file.relative_to(table)}: {changed[-300:]!r}") from error
        assert outside.read_bytes() == b"not ours"
        file.write_bytes(before)
        if writes:
            shutil.rmtree(copy)
    for whole, content in wholes.items():
        assert _content(whole) == content, f"readers changed {whole}"
        assert set(outcome(whole, READERS)) == {"answer"}
    return inputs


def _content(table: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in table.rglob("*") if file.is_file()}
