"""Few packages at run time, every one that is installed for tests pinned, and the rules for security on."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from scripts import oldest

ROOT = Path(__file__).resolve().parents[3]
RUNTIME = {
    "fsspec": "stores of all kinds, to read",
    "numpy": "buckets, orders and masks of rows",
    "orjson": "commits, many thousands of them",
    "pyarrow": "the kernel, and Parquet",
    "sqlglot": "filters in SQL without Spark",
}


def project() -> dict[str, Any]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned() -> dict[str, str]:
    lines = [line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    pairs = [line.split("==") for line in lines if line]
    assert all(len(pair) == 2 for pair in pairs), "a constraint is no exact version"
    return {normal(name): version for name, version in pairs}


def asked() -> list[Requirement]:
    """The project's requirements, at run time and of its extras."""
    tables = project()["project"]
    extras = [line for extra in tables["optional-dependencies"].values() for line in extra]
    return [Requirement(line) for line in [*tables["dependencies"], *extras]]


def test_runtime_needs_few_packages() -> None:
    assert {Requirement(line).name for line in project()["project"]["dependencies"]} == RUNTIME.keys()


def test_what_is_asked_for_is_pinned_and_fits() -> None:
    constraints = pinned()
    for requirement in asked():
        assert constraints[normal(requirement.name)] in requirement.specifier


def test_the_oldest_versions_are_those_that_are_tested() -> None:
    """``make oldest`` installs them. A package that two extras ask for has one oldest version."""
    assert {*oldest.EXTRAS, "s3", "gcs", "azure", "bench", "test"} == project()["project"][
        "optional-dependencies"
    ].keys()
    tested = dict(line.split("==") for line in oldest.constraints())
    assert tested.keys() >= RUNTIME.keys()
    for requirement in asked():
        if requirement.name in tested:
            assert f">={tested[requirement.name]}" in str(requirement.specifier).split(",")


def test_what_is_installed_for_it_is_pinned_too() -> None:
    """Dependencies of dependencies, as the environment that runs this has them."""
    constraints, seen, loose = pinned(), set(), []
    waiting = [(normal(requirement.name), frozenset(requirement.extras)) for requirement in asked()]
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen or name == "lakemerge":
            continue
        seen.add((name, extras))
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # of another platform, or not installed yet
        if constraints.get(name) != found.version:
            loose.append(f"{name}=={found.version}")
        waiting += [
            (normal(requirement.name), frozenset(requirement.extras))
            for requirement in map(Requirement, found.requires or ())
            if requirement.marker is None or any(requirement.marker.evaluate({"extra": e}) for e in extras | {""})
        ]
    assert len(seen) > len(asked())
    assert loose == []


def test_the_rules_for_security_are_on_for_the_product() -> None:
    ruff = project()["tool"]["ruff"]["lint"]
    assert "S" in ruff["select"]
    assert not [rule for rule in ruff["ignore"] if rule.startswith("S")]
    exempt = {path: [rule for rule in rules if rule[0] == "S"] for path, rules in ruff["per-file-ignores"].items()}
    of_the_product = {
        path for path, rules in exempt.items() if rules and not path.startswith(("tests/", "benchmarks/"))
    }
    # Suites that users run on stores and mergers of their own: they assert, and unpickle what they pickled.
    assert of_the_product == {"lakemerge/testing/**", "mergers/testing/**"}


def test_the_licence_is_stated() -> None:
    assert project()["project"]["license"] == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text()
    assert text.split()[:4] == ["Apache", "License", "Version", "2.0,"]
    assert "Apache License 2.0, see [LICENSE](LICENSE)" in (ROOT / "README.md").read_text()


def test_nothing_is_tracked_that_should_be_ignored() -> None:
    """Caches, coverage files and build products. A source archive has no list of tracked files."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone")

    def tracked(*options: str) -> list[str]:
        command = ["git", "ls-files", *options]
        return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout.splitlines()

    assert tracked("--cached", "--ignored", "--exclude-standard") == []
    texts = {"CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md"}
    configuration = {"Makefile", "constraints.txt", "mkdocs.yml", "pyproject.toml"}
    sources = {"pyspark_lakemerge.py", "pyspark_lakemerge_catalog.py"}
    at_the_root = {path for path in tracked() if "/" not in path and not path.startswith(".")}
    assert at_the_root == texts | configuration | sources
