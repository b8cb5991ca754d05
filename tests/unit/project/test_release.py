"""A release can be built again from its commit, and names what it was built of."""

from __future__ import annotations

import tarfile
import tomllib
from pathlib import Path

import pytest

from scripts import release

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.long
def test_two_builds_of_a_commit_are_the_same_bytes(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone, so there is no commit to build")
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    one, two = (release.build(folder) for folder in folders)
    assert release.digests(one) == release.digests(two)
    [archive, _] = sorted(one, key=lambda path: path.suffix)
    with tarfile.open(archive) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
        times = {member.mtime for member in packed.getmembers()}
    assert {"pyproject.toml", "LICENSE", "lakemerge/__init__.py", "lakemerge/connector/lakemerge-spark.jar"} <= names
    assert len(times) == 1, "a file has another time than the commit"


def test_every_extra_of_users_is_tried() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {*release.FOR_USERS, "test", "bench"} == extras.keys()
