"""Damaged and hostile files: whatever a byte or a JSON value is changed to, the outcome is an answer or a clear error.

Never an exception of another kind, never a file outside the table, never an answer from a log that cannot be read.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lakemerge import LakeTable, TableDamagedError
from tests.property.damage import damaged, leaves, make_whole, outcome, targets, with_value
from tests.property.effort import some
from tests.relink import relink

HOSTILE_VALUES: tuple[object, ...] = (None, -1, 2**62, 2**63, 2**64, "x", [], [None], {})
SEEDS = 8
ROUNDS = 6


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("whole") / "t"
    make_whole(path)
    return path


@pytest.mark.parametrize("seed", some(range(SEEDS)))
def test_damage_never_surprises(whole: Path, tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    outside = tmp_path / "outside.parquet"
    outside.write_bytes(b"not ours")
    for number in range(ROUNDS):
        folder = shutil.copytree(whole, tmp_path / str(number))
        file = dice.choice(targets(folder))
        changed = damaged(file, dice)
        file.write_bytes(changed)
        if dice.random() < 0.5:
            relink(folder)  # so that the damage lies behind the check of the chain
        try:
            outcome(folder)
        except Exception as error:
            raise AssertionError(
                f"seed {seed}, round {number}: {file.relative_to(folder)}: {changed[-300:]!r}"
            ) from error
        shutil.rmtree(folder)
    assert outside.read_bytes() == b"not ours"


def rewrite(folder: Path, version: int, pattern: str, text: str) -> None:
    """Put ``text`` in the place of what the pattern finds in a commit."""
    commit = folder / "_delta_log" / f"{version:020d}.json"
    changed = re.sub(pattern, text, commit.read_text())
    assert changed != commit.read_text()
    commit.write_text(changed)
    relink(folder)


@pytest.mark.parametrize(
    ("pattern", "text", "message"),
    [
        (r"(partitions\W+\[)\[[^]]*\]", r"\1[{}]", "partition values are strings or null"),
        (r"(partitions\W+\[)\[[^]]*\]", r"\g<1>0", "TypeError"),
        (r"(blocks\W+\[\[\d+, ?\d+, ?\d+, ?\d+, ?)\d+", r"\g<1>2", "bucket must be one of 1"),
        (r"(blocks\W+\[\[\d+, ?\d+, ?\d+, ?\d+, ?)\d+", r"\g<1>-1", "not (be )?negative"),
        (r"(blocks\W+\[\[\d+, ?\d+, ?\d+, ?\d+, ?\d+, ?)\d+", r"\g<1>-1", "not (be )?negative"),
    ],
)
@pytest.mark.parametrize("read", [lambda table: table.to_arrow(), lambda table: table.compact()], ids=["read", "plan"])
def test_blocks_of_no_slice(
    tmp_path: Path, read: Callable[[LakeTable], object], pattern: str, text: str, message: str
) -> None:
    """What soaks found: partitions that are no lists of strings were no errors of ours, to readers or to planners."""
    folder = tmp_path / "t"
    make_whole(folder, sliced=False)
    rewrite(folder, 6, pattern, text)
    with pytest.raises(TableDamagedError, match=message):
        read(LakeTable.open(folder))


@pytest.mark.parametrize("sliced", [True, False], ids=["index", "inline"])
@pytest.mark.parametrize("version", [4, 7], ids=["minor", "log"])
def test_each_value_of_a_domain(tmp_path: Path, version: int, sliced: bool) -> None:
    """Whichever value of those that stand in the commit of a minor compaction or of an upsert becomes whatever."""
    whole = tmp_path / "whole"
    make_whole(whole, sliced=sliced)
    commit = Path("_delta_log") / f"{version:020d}.json"
    lines = [json.loads(line) for line in (whole / commit).read_text().splitlines()]
    domains = [line["domainMetadata"] for line in lines if line.get("domainMetadata", {}).get("configuration")]
    told = 0
    for domain in domains:
        body = json.loads(domain["configuration"])
        for place, value in some([*itertools.product(leaves(body), HOSTILE_VALUES)]):
            changed = copy.deepcopy(body)
            with_value(changed, place, value)
            domain["configuration"] = json.dumps(changed)
            folder = shutil.copytree(whole, tmp_path / "t")
            (folder / commit).write_text("\n".join(map(json.dumps, lines)) + "\n")
            relink(folder)
            told += len(outcome(folder, ["rows", "buckets", "check", "compaction", "vacuum"]))
            shutil.rmtree(folder)
        domain["configuration"] = json.dumps(body)
    assert told > len(some(range(100)))


def test_a_path_too_long_for_the_file_system(whole: Path, tmp_path: Path) -> None:
    """What a soak found: the file system's own error was none of ours."""
    folder = shutil.copytree(whole, tmp_path / "t")
    rewrite(folder, 7, r"_lakemerge/log/[\w.-]*", "x" * 2000)
    with pytest.raises(TableDamagedError, match="is missing"):
        LakeTable.open(folder).to_arrow()


def test_a_row_group_whose_number_is_too_large(tmp_path: Path) -> None:
    """What a soak found: it was an OverflowError."""
    folder = tmp_path / "t"
    make_whole(folder, sliced=False)
    rewrite(folder, 7, r"(blocks\W+\[\[\d+, ?)\d+", rf"\g<1>{2**63}")
    with pytest.raises(TableDamagedError, match="a block's numbers"):
        LakeTable.open(folder).to_arrow()


@pytest.mark.parametrize(
    "read",
    [
        lambda table: table.to_arrow(),
        lambda table: list(table.changes(since=0)),
        lambda table: table.compact_logs(size_ratio=math.inf),
        lambda table: table.compact(),
    ],
    ids=["rows", "changes", "log compaction", "compaction"],
)
def test_more_row_groups_than_could_be_listed(tmp_path: Path, read: Callable[[LakeTable], object]) -> None:
    """Two billion of them: the file is asked before anybody counts them up."""
    folder = tmp_path / "t"
    make_whole(folder, sliced=False)
    rewrite(folder, 7, r"(blocks\W+\[\[\d+, ?\d+, ?)\d+", rf"\g<1>{2**31 - 1}")
    table = LakeTable.open(folder)
    with pytest.raises(TableDamagedError, match=r"row group\(s\); the table names number"):
        read(table)


def test_a_bound_of_another_type_than_the_key(tmp_path: Path) -> None:
    """What a soak found: it could not be compared with a key that was looked for."""
    folder = tmp_path / "t"
    make_whole(folder, sliced=False)
    rewrite(folder, 6, r"\[13, ?\\+\"a\\+\"\]", r'[\\"x\\", \\"a\\"]')
    with pytest.raises(TableDamagedError, match="the table has no such keys"):
        LakeTable.open(folder).get({"id": 3, "part": "a"})
