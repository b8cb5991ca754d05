"""The wheel holds the product, all of it, and nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("compaction", "lakemerge", "mergers")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    built = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def wheel(path: Path) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(path) as archive:
        yield archive


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(wheel.read(name).decode())


def test_holds_just_the_product(wheel: zipfile.ZipFile) -> None:
    found = {name for name in wheel.namelist() if ".dist-info/" not in name}
    expected = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and (path.suffix in (".py", ".jar", ".json") or path.name == "py.typed")
    }
    assert found == expected | {"pyspark_lakemerge.py", "pyspark_lakemerge_catalog.py"}


def test_every_package_is_typed(wheel: zipfile.ZipFile) -> None:
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(wheel.namelist())


def test_carries_the_licence_and_no_scratch_paths(wheel: zipfile.ZipFile, metadata: Message) -> None:
    (licence,) = (name for name in wheel.namelist() if name.endswith("/licenses/LICENSE"))
    assert wheel.read(licence) == (ROOT / "LICENSE").read_bytes()
    assert metadata["License-Expression"] == "Apache-2.0"
    texts = [wheel.read(name) for name in wheel.namelist()]
    assert not any(str(ROOT).encode() in text for text in texts)


def test_version_and_python_are_those_of_pyproject(metadata: Message) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (metadata["Name"], metadata["Version"]) == ("lakemerge", project["version"])
    assert metadata["Requires-Python"] == ">=3.11"


def test_the_readme_of_a_package_index_has_no_links_into_the_repository(metadata: Message) -> None:
    assert metadata["Description-Content-Type"] == "text/markdown"
    text, readme = str(metadata.get_payload()), (ROOT / "README.md").read_text()
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert len(re.findall(r"\]\(", readme)) > len(links)
    assert [link for link in links if not link.startswith("https://")] == []
    assert "More cases, and others compared. The documentation is in the folder `docs` of the source archive." in text
    assert "![" not in text
    assert "The plot" in readme
    assert "The plot" not in text


def test_the_source_archive_has_what_its_readme_names(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    built = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = tmp_path.iterdir()
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    pages = {page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert len(pages) > 50
    assert {"README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml"} | pages <= names


def test_engines_are_extras(metadata: Message) -> None:
    needed = {line.split(";")[0] for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line}
    names = {requirement.split(">")[0].split("<")[0].strip() for requirement in needed}
    assert names == {"fsspec", "numpy", "orjson", "pyarrow", "sqlglot"}


@pytest.mark.long
def test_reads_and_writes_the_golden_tables(path: Path, tmp_path: Path) -> None:
    """Installed from the wheel, in a folder that has the tests and not the product. What only tests need comes from
    here: a path that a ``.pth`` file adds has no ``.pth`` files of its own, so it does not bring the product."""
    environment, root = tmp_path / "environment", tmp_path / "root"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    python = str(environment / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(path)], check=True)
    [packages] = environment.glob("lib/python*/site-packages")
    (packages / "tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    shutil.copytree(ROOT / "tests", root / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    where = "import lakemerge, mergers, compaction; print(lakemerge.__file__, mergers.__file__, compaction.__file__)"
    found = subprocess.run(
        [python, "-c", where], check=True, capture_output=True, text=True, cwd=root, env=alone
    ).stdout.split()
    assert len(found) == 3
    assert all(Path(file).is_relative_to(packages) for file in found)
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/golden"]
    run = subprocess.run(command, check=False, capture_output=True, text=True, cwd=root, env=alone)
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout
