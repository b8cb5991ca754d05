"""The jar that the package ships is the one of the sources."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest

from lakemerge.connector.jar import jar_path, jar_version
from scripts import build_connector


def test_the_jar_was_built_from_the_sources() -> None:
    assert jar_version() == build_connector.digest(), "run: make connector"


@pytest.mark.long
@pytest.mark.skipif(shutil.which("javac") is None, reason="there is no JDK, only a Java that runs")
def test_the_same_sources_give_the_same_classes(tmp_path: Path) -> None:
    (tmp_path / "classes").mkdir()
    build_connector.compiled(tmp_path / "classes", build_connector.spark_jars())
    build_connector.pack(tmp_path / "classes", tmp_path / "again.jar")
    with zipfile.ZipFile(jar_path()) as shipped, zipfile.ZipFile(tmp_path / "again.jar") as again:
        assert shipped.namelist() == again.namelist()
        assert [name for name in shipped.namelist() if shipped.read(name) != again.read(name)] == []
