"""Damaged and hostile files: whatever a byte or a JSON value is changed to, the outcome is an answer or a clear error.

Never an exception of another kind, never a file outside the table, never an answer from a log that cannot be read.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from lakemerge import LakeTable, TableDamagedError
from tests.property.damage import damaged, make_whole, outcome, targets

SEEDS = 8
ROUNDS = 6


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("whole") / "t"
    make_whole(path)
    return path


@pytest.mark.parametrize("seed", range(SEEDS))
def test_damage_never_surprises(whole: Path, tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    outside = tmp_path / "outside.parquet"
    outside.write_bytes(b"not ours")
    for number in range(ROUNDS):
        folder = shutil.copytree(whole, tmp_path / str(number))
        file = dice.choice(targets(folder))
        changed = damaged(file, dice)
        file.write_bytes(changed)
        try:
            outcome(folder)
        except Exception as error:
            raise AssertionError(
                f"seed {seed}, round {number}: {file.relative_to(folder)}: {changed[-300:]!r}"
            ) from error
        shutil.rmtree(folder)
    assert outside.read_bytes() == b"not ours"


def test_partition_values_that_are_no_strings(whole: Path, tmp_path: Path) -> None:
    """What a soak found: a value that cannot be a key of a dictionary was no error of ours."""
    folder = shutil.copytree(whole, tmp_path / "t")
    commit = folder / "_delta_log" / f"{6:020d}.json"
    commit.write_text(commit.read_text().replace(r"[\"a\"]", "[{}]").replace(r"[[\"b\"]", "[[{}]"))
    with pytest.raises(TableDamagedError, match="partition values are strings or null"):
        LakeTable.open(folder).to_arrow()
