"""Many damaged files, one after the other, in one table."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from tests.property.damage import EVERYBODY, READERS, damaged, make_whole, outcome, targets

__all__ = ["fuzz"]

WRITING = 8
"""One of so many damaged tables is looked at by everybody, also compacted and vacuumed, in a copy."""


def fuzz(folder: Path, seed: object, inputs: int) -> int:
    """Damage so many files; how many. Raises :class:`AssertionError` naming the file where the outcome is neither an
    answer nor an error of ours, or a file outside the table was touched."""
    dice = random.Random(f"damage {seed}")
    whole, copy, outside = folder / "whole", folder / "copy", folder / "outside.parquet"
    make_whole(whole)
    outside.write_bytes(b"not ours")
    for number in range(inputs):
        writes = dice.randrange(WRITING) == 0
        who = EVERYBODY if writes else ("rows", dice.choice([*READERS]))
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
    answer = outcome(whole)
    assert set(answer) == {"answer"}, f"the whole table was changed: {answer}"
    return inputs
