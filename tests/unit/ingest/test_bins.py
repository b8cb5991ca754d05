"""Bins after NiFi's MergeRecord and sets after its defragment, from landing files to windows and reasons."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from lakemerge import InputError, LakeTable
from lakemerge.ingest import Bins, Files, Fragments, IngestJob
from tests.unit.ingest.landing import FEED, land, landed, numbered, rows, states, windows_of

FULL = "Records Merged due to: Bin is full"
TOO_MANY = "Records Merged due to: Maximum number of bins has been exceeded"


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    return LakeTable.create(tmp_path / "table", FEED, key=["k"], ordering=["o"])


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    (tmp_path / "landing").mkdir()
    return tmp_path / "landing"


def job(table: LakeTable, landing: Path, *, pattern: str | None = None, **more: Any) -> IngestJob:
    return table.ingest("feed", Files(landing, format="json", pattern=pattern), **more)


def at_time(feed: IngestJob, now_ms: int) -> IngestJob:
    """The same job by a clock that says so."""
    settings = feed._needed()
    object.__setattr__(settings, "now_ms", lambda: now_ms)
    return feed


def sizes(table: LakeTable) -> list[tuple[int, str | None]]:
    """Files and reason of each window."""
    return [(info["files"], info.get("reason")) for info in windows_of(table) if "files" in info]


def people(landing: Path, counts: Sequence[int]) -> None:
    """The files of the example in NiFi's documentation: so many records each."""
    start = 0
    for number, count in enumerate(counts, start=1):
        land(landing, f"{number}.json", numbered(start, start + count), at=number)
        start += count


def test_the_example_of_nifis_documentation(table: LakeTable, landing: Path) -> None:
    people(landing, [1, 2, 1, 1])
    result = job(table, landing, bins=Bins(min_records=3, max_records=5)).run()
    assert (result.windows, result.rows) == (1, 5)
    assert sizes(table) == [(4, FULL)]


def test_three_of_them_are_enough_and_the_fourth_begins_a_bin(table: LakeTable, landing: Path) -> None:
    people(landing, [1, 2, 1])
    feed = job(table, landing, bins=Bins(min_records=3, max_records=5))
    feed.run()
    people(landing, [1, 2, 1, 1])
    feed.run()
    assert sizes(table) == [(3, FULL)]
    assert states(feed)["4.json"] == "binned"


def test_eight_records_make_two_bins(table: LakeTable, landing: Path) -> None:
    people(landing, [1] * 8)
    job(table, landing, bins=Bins(min_records=3, max_records=5)).run()
    assert sizes(table) == [(5, FULL), (3, FULL)]


def test_what_stays_in_a_bin_is_remembered_with_its_age_and_records(table: LakeTable, landing: Path) -> None:
    """By another process, too: nothing of it is in this one."""
    people(landing, [1, 1])
    bins = Bins(min_records=3, max_age="10s")
    at_time(job(table, landing, bins=bins), 1_000_000).run()
    assert (rows(table), states(job(table, landing))) == ([], {"1.json": "binned", "2.json": "binned"})
    version = table.version
    at_time(job(LakeTable.open(table.url), landing, bins=bins), 1_005_000).run()
    assert table.version == version, "nothing new, so nothing is noted"
    landed(landing / "1.json", b"", at=1)  # would be counted as no records, were it counted again
    os.unlink(landing / "1.json")
    people(landing, [1])
    at_time(job(LakeTable.open(table.url), landing, bins=bins), 1_009_999).run()
    at_time(job(LakeTable.open(table.url), landing, bins=bins), 1_010_000).run()
    assert [reason for _, reason in sizes(table)] == ["Records Merged due to: Bin has reached Max Bin Age"]
    assert 1 in {row[0] for row in rows(table)}


def test_records_are_a_soft_maximum_and_bytes_a_hard_one(table: LakeTable, landing: Path) -> None:
    people(landing, [3, 4, 1])
    job(table, landing, bins=Bins(max_records=5)).run()
    assert sizes(table) == [(2, FULL), (1, FULL)]
    for number in range(4, 9):
        land(landing, f"{number}.json", numbered(10 * number, 10 * number + 1), at=number)
    land(landing, "9.json", numbered(100, 120), at=9)
    size = os.stat(landing / "4.json").st_size
    job(table, landing, bins=Bins(max_bytes=size * 3)).run()
    assert [files for files, _ in sizes(table)[2:]] == [3, 1, 2], "a file beyond the maximum is a bin alone"


def test_correlated_files_share_no_bin_and_the_oldest_makes_room(table: LakeTable, landing: Path) -> None:
    for number, store in enumerate(["a", "b", "a", "c"]):
        land(landing, f"{store}-{number}.json", numbered(number, number + 1), at=number)
    pattern = r"(?P<store>[a-z])-\d+\.json"
    bins = Bins(min_records=5, max_bins=2, correlate=("store",))
    feed = job(table, landing, pattern=pattern, bins=bins)
    feed.run()
    assert sizes(table) == [(2, TOO_MANY)]
    assert [row[0] for row in rows(table)] == [0, 2]
    result = feed.run(drain=True)
    assert (result.windows, result.files) == (2, 2)
    assert sizes(table)[1:] == [(1, "Records Merged due to: The job was drained")] * 2


def test_partition_folders_correlate(table: LakeTable, landing: Path) -> None:
    for number, store in enumerate(["7", "8", "7"]):
        land(landing / f"store={store}", f"{number}.json", numbered(number, number + 1), at=number)
    job(table, landing, bins=Bins(correlate=("store",))).run()
    assert sorted(files for files, _ in sizes(table)) == [1, 2]


def test_a_file_without_the_correlation_fails_and_is_tried_again(table: LakeTable, landing: Path) -> None:
    land(landing / "store=7", "1.json", numbered(0, 1), at=1)
    land(landing, "2.json", numbered(1, 2), at=2)
    pattern = r"(?P<number>\d+)\.json"
    feed = job(table, landing, pattern=pattern, bins=Bins(correlate=("store",)))
    result = feed.run()
    assert (result.files, states(feed)) == (1, {"1.json": "committed", "2.json": "failed"})
    reason = next(file.reason for file in feed.files() if file.state == "failed")
    assert reason is not None
    for told in ("2.json", "'store'", "the pattern's groups (number)", "store=VALUE", "retry"):
        assert told in reason
    feed.retry()
    job(table, landing, pattern=pattern, bins=Bins(correlate=("number",))).run()
    assert [row[0] for row in rows(table)] == [0, 1]


def test_a_group_that_did_not_match_is_a_value_of_its_own(table: LakeTable, landing: Path) -> None:
    for number, name in enumerate(["a-1", "2", "a-3", "4"]):
        land(landing, f"{name}.json", numbered(number, number + 1), at=number)
    job(table, landing, pattern=r"((?P<store>[a-z])-)?\d+\.json", bins=Bins(correlate=("store",))).run()
    assert [files for files, _ in sizes(table)] == [2, 2]


def test_files_of_different_columns_are_not_alike(tmp_path: Path, landing: Path) -> None:
    table = LakeTable.create(tmp_path / "t", FEED, key=["k"], merger="partial-update", ordering=["o"])
    for number, data in enumerate([b"k,o,v\n1,1,a\n", b"k,o\n2,1\n", b"o,K,v\n1,3,c\n"]):
        landed(landing / f"{number}.csv", data, at=number)
    table.ingest("feed", Files(landing, format="csv"), bins=Bins(min_bytes=1)).run()
    assert [files for files, _ in sizes(table)] == [2, 1]


def test_a_closed_bin_is_one_window_whatever_the_limits_of_windows(table: LakeTable, landing: Path) -> None:
    people(landing, [5] * 6)
    files = Files(landing, format="json", block_bytes=20)
    table.ingest("feed", files, bins=Bins(), blocks_per_window=2, bytes_per_window=30).run()
    assert [files for files, _ in sizes(table)] == [6]


def test_the_reason_is_in_the_commit_and_in_the_ledger(table: LakeTable, landing: Path) -> None:
    people(landing, [1, 1])
    feed = job(table, landing, bins=Bins(min_records=2))
    feed.run()
    assert windows_of(table)[-1]["reason"] == FULL
    assert {file.reason for file in feed.files()} == {FULL}


def test_a_file_that_vanishes_from_a_bin_is_gone_and_the_others_wait(table: LakeTable, landing: Path) -> None:
    people(landing, [1, 1])
    feed = job(table, landing, bins=Bins(min_records=3))
    feed.run()
    os.unlink(landing / "1.json")
    feed.run()
    assert states(feed) == {"1.json": "gone", "2.json": "binned"}
    people(landing, [1])
    land(landing, "3.json", numbered(5, 6), at=3)
    assert feed.run().files == 3


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        ({"min_records": 5, "max_records": 4}, "5 to 4 records"),
        ({"max_bytes": "huge"}, "is not a size"),
        ({"max_age": "soon"}, "is not a duration"),
        ({"max_bins": 0}, "at least 1"),
        ({"min_records": -1}, "min_records must be a number from 0 on"),
        ({"correlate": "store"}, "correlate must be a list of names"),
    ],
)
def test_limits_that_cannot_be_are_refused(limits: Mapping[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        Bins(**limits)


PATTERN = r"(?P<identifier>[a-z]+)-(?P<index>\d+)(-of-(?P<count>\d+))?\.json"


def parts(landing: Path, *names: str) -> None:
    """Files of the sets that their names tell; each record says which file was the last one."""
    for number, name in enumerate(names):
        land(landing, f"{name}.json", [{"k": 0, "v": name}, {"k": number + 1, "v": name}], at=number)


@pytest.fixture
def by_commit(tmp_path: Path) -> LakeTable:
    return LakeTable.create(tmp_path / "by-commit", "k BIGINT, v STRING", key=["k"])


def test_a_set_is_merged_when_it_is_whole_in_the_order_of_its_indices(by_commit: LakeTable, landing: Path) -> None:
    feed = job(by_commit, landing, pattern=PATTERN, fragments=Fragments())
    parts(landing, "x-10-of-3", "x-2-of-3")
    assert feed.run().files == 0
    assert states(feed) == {"x-10-of-3.json": "binned", "x-2-of-3.json": "binned"}
    parts(landing, "x-10-of-3", "x-2-of-3", "x-9")
    assert (feed.run().windows, feed.run().windows) == (1, 0)
    assert rows(by_commit)[0][1] == "x-10-of-3", "the last by number, not by name or time"
    assert sizes(by_commit) == [(3, FULL)]


def test_a_set_in_which_nobody_tells_the_count_is_never_whole(by_commit: LakeTable, landing: Path) -> None:
    parts(landing, "x-1", "x-2", "y-1-of-1")
    feed = job(by_commit, landing, pattern=PATTERN, fragments=Fragments(max_age="10s"))
    at_time(feed, 5_000).run(drain=True)
    assert sizes(by_commit) == [(1, FULL)]
    result = at_time(feed, 15_000).run()
    assert (result.failed, states(feed)["x-1.json"], states(feed)["x-2.json"]) == (2, "failed", "failed")
    reasons = {file.reason for file in feed.files(state="failed")}
    assert reasons == {"Bin has reached Max Bin Age: 2 of an unknown number files of set 'x' are there after 0:00:10"}


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (("x-1-of-3", "x-2-of-4"), "counts of [3, 4]"),
        (("x-1-of-3", "x-01-of-3"), "an index twice"),
    ],
)
def test_sets_that_contradict_themselves_fail(
    names: tuple[str, ...], why: str, by_commit: LakeTable, landing: Path
) -> None:
    parts(landing, *names, "y-1-of-1")
    feed = job(by_commit, landing, pattern=PATTERN, fragments=Fragments())
    result = feed.run()
    assert (result.failed, result.files) == (2, 1)
    assert all(why in str(file.reason) for file in feed.files(state="failed"))
    assert {value for _, value in rows(by_commit)} == {"y-1-of-1"}


def test_a_set_that_is_evicted_before_it_is_whole_fails(by_commit: LakeTable, landing: Path) -> None:
    parts(landing, "x-1-of-2", "y-1-of-2", "z-1-of-2")
    feed = job(by_commit, landing, pattern=PATTERN, fragments=Fragments(max_bins=2))
    assert feed.run().failed == 1
    told = feed.files(state="failed")[0].reason
    assert told == "Maximum number of bins has been exceeded: 1 of 2 files of set 'x' are there"


def test_limits_of_sets_may_be_those_of_bins(by_commit: LakeTable, landing: Path) -> None:
    parts(landing, "x-1-of-2")
    feed = job(by_commit, landing, pattern=PATTERN, fragments=Fragments(), bins=Bins(max_age="10s"))
    at_time(feed, 5_000).run()
    assert at_time(feed, 15_000).run().failed == 1


def test_files_that_belong_to_no_set_fail_alone(by_commit: LakeTable, landing: Path) -> None:
    pattern = r"(?P<identifier>[a-z]*)-?(?P<index>\w+)?(-of-(?P<count>\w+))?\.json"
    parts(landing, "x-q-of-1", "y-1-of-1")
    feed = job(by_commit, landing, pattern=pattern, fragments=Fragments())
    assert (feed.run().failed, states(feed)) == (1, {"x-q-of-1.json": "failed", "y-1-of-1.json": "committed"})


def test_a_failed_set_is_retried_whole(by_commit: LakeTable, landing: Path) -> None:
    parts(landing, "x-1-of-2")
    feed = job(by_commit, landing, pattern=PATTERN, fragments=Fragments(max_age=10))
    at_time(feed, 5_000).run()
    at_time(feed, 99_000).run()
    assert feed.retry() == 1
    parts(landing, "x-1-of-2", "x-2-of-2")
    assert at_time(feed, 100_000).run().files == 2


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"pattern": r"(?P<identifier>x)\.json"}, r"no group \(\?P<index>"),
        ({"pattern": None}, r"no group \(\?P<identifier>"),
        ({"pattern": PATTERN, "bins": Bins(min_records=2)}, "with fragments, bins may have only max_age and max_bins"),
        ({"pattern": "("}, "is not a regular expression"),
    ],
)
def test_a_pattern_without_its_groups_is_refused(
    more: dict[str, Any], problem: str, table: LakeTable, landing: Path
) -> None:
    with pytest.raises(InputError, match=problem):
        job(table, landing, fragments=Fragments(), **more)


def test_other_names_for_the_groups(by_commit: LakeTable, landing: Path) -> None:
    parts(landing, "x-1-of-2", "x-2-of-2")
    fragments = Fragments(identifier="id", index="part", count="parts")
    pattern = r"(?P<id>[a-z]+)-(?P<part>\d+)-of-(?P<parts>\d+)\.json"
    assert job(by_commit, landing, pattern=pattern, fragments=fragments).run().files == 2
