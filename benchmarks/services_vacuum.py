"""How long a dry run of vacuum takes over many files on a local disk, and what deleting them costs.

The table's log is real, its files are empty. Half of them are base files, half logs; each commit replaces
those of the one before, and the last tenth of the versions is within the retention. The floors list the
same files with their times, and delete them, with nothing else done.

    python -m benchmarks.services_vacuum --files 100000
"""

from __future__ import annotations

import argparse
import os
import tempfile
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmarks.measure import Contender, Line, Report, interleave
from lakemerge import LakeTable, VacuumResult
from lakemerge.commits.compaction import removal
from lakemerge.delta import Action, AddFile, AlreadyDone, Attempt, DomainMetadata, Snapshot
from lakemerge.format.base_file import BaseFile
from lakemerge.format.block_index import LogCommit
from lakemerge.format.keys import BucketId
from lakemerge.format.log_block import LogBlock, LogFile
from lakemerge.format.names import SLICE_TAG

_TARGET_SECONDS = 5.0
_FILES_PER_COMMIT = 200
_FOLDERS = ("base", "_lakemerge")
_WEEK_AND_A_DAY_S = 8 * 86_400


def measure(report: Report, folder: Path, *, files: int, rounds: int) -> None:
    commits = files // _FILES_PER_COMMIT
    table = _table(folder, commits)
    oldest = commits - commits // 10
    _age(folder, oldest)
    times = interleave(
        [Contender("listing", partial(_list, folder)), Contender("vacuum", partial(table.vacuum))], rounds=rounds
    )
    made = commits * _FILES_PER_COMMIT
    report.add(Line.timed("vacuum", f"dry run over {made:,} files", times["vacuum"], target=_TARGET_SECONDS))
    report.add(Line.timed("vacuum", "the same / listing them", times["vacuum"], times["listing"]))
    dead = (oldest - 1) * _FILES_PER_COMMIT
    report.check("dry run", _problems(table.vacuum(), oldest=oldest, dead=dead))
    done = table.vacuum(dry_run=False)
    report.add(Line(case="vacuum", what=f"deleting {dead:,} of them", unit="s", value=done.seconds))
    report.check("vacuum", _problems(done, oldest=oldest, dead=dead))
    left = _list(folder)
    if left != made - dead:
        report.check("vacuum", [f"{left} files are left of {made}, of which {dead} were to go"])


def _problems(found: VacuumResult, *, oldest: int, dead: int) -> list[str]:
    expected = {"base": dead // 2, "log": dead // 2}
    problems = [] if dict(found.files) == expected else [f"files are {dict(found.files)}, expected {expected}"]
    return (
        problems if found.oldest_version == oldest else [*problems, f"oldest is {found.oldest_version}, not {oldest}"]
    )


def _table(folder: Path, commits: int) -> LakeTable:
    table = LakeTable.create(
        folder, "k BIGINT, v STRING", key=["k"], buckets=1, properties={"lakemerge.maintenance": "off"}
    )
    tip, config, state = table.view.snapshot, table.view.config, table.view.state
    before: tuple[list[AddFile], LogCommit] | None = None
    for number in range(commits):
        name = f"{tip.version:020d}-{number:08d}"
        adds = [_add(f"base/{name}/{i:05d}.parquet", i) for i in range(_FILES_PER_COMMIT // 2)]
        logs = [LogFile(f"_lakemerge/log/{name}-{i:05d}.parquet", 0, ("k", "v")) for i in range(_FILES_PER_COMMIT // 2)]
        blocks = tuple(LogBlock(file, 0, 1, BucketId((), 0), 1, 1, 1, None, None) for file in logs)
        commit = LogCommit(name, -1, 0, ("k", "v"), blocks, None)
        for path in (*(add.path for add in adds), *(log.path for log in logs)):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).touch()
        actions: list[Action] = [*adds, commit.domain(config=config, state=state, version=tip.version + 1)]
        if before is not None:
            actions += [DomainMetadata(before[1].domain_name, "", True), *(removal(add, 0) for add in before[0])]
        tip = _commit(table, tip, actions)
        before = (adds, commit)
    return table


def _add(path: str, place: int) -> AddFile:
    lower = (place,) if place else None
    tag = BaseFile.tag(bucket=0, buckets=1, lower=lower, through=0, ordinal=place, rows=0, tombstones=None)
    return AddFile(path, {}, 0, 0, True, None, {SLICE_TAG: tag})


def _commit(table: LakeTable, tip: Snapshot, actions: list[Action]) -> Snapshot:
    done = table.handle.log.commit(tip, lambda _: Attempt(actions), operation="SYNTHETIC", parameters={})
    if isinstance(done, AlreadyDone):
        raise AssertionError("an attempt is never done already")
    return done.snapshot


def _age(folder: Path, oldest: int) -> None:
    """Versions up to ``oldest`` are older than the retention by the clock of the disk."""
    for commit in (folder / "_delta_log").glob("*.json"):
        if int(commit.stem) <= oldest:
            seconds = commit.stat().st_mtime - _WEEK_AND_A_DAY_S
            os.utime(commit, (seconds, seconds))


def _list(folder: Path) -> int:
    """The number of the table's files, each looked at for its time."""
    count = 0
    for top in _FOLDERS:
        for parent, _, names in os.walk(folder / top):
            for name in names:
                os.stat(os.path.join(parent, name))
                count += not name.startswith(".")
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    report = Report(Console())
    with tempfile.TemporaryDirectory() as folder:
        measure(report, Path(folder) / "table", files=arguments.files, rounds=arguments.rounds)
    report.end()
    return 1 if report.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
