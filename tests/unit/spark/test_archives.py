"""What a Spark worker need not read again before each task."""

from __future__ import annotations

import importlib
import sys
import zipfile
import zipimport
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakemerge.spark.archives import forget_archives


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "archive.zip"
    with zipfile.ZipFile(path, "w") as made:
        for name in ("__init__", "first", "second"):
            made.writestr(f"of_an_archive/{name}.py", f"NAME = '{name}'")
    monkeypatch.syspath_prepend(path)
    yield path
    for name in [name for name in sys.modules if name.startswith("of_an_archive")]:
        del sys.modules[name]
    for known in [known for known in sys.path_importer_cache if known.startswith(str(path))]:
        del sys.path_importer_cache[known]


def importers(path: Path) -> int:
    return sum(
        known.startswith(str(path)) and isinstance(importer, zipimport.zipimporter)
        for known, importer in sys.path_importer_cache.items()
    )


def test_a_worker_forgets_importers_and_still_imports(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.import_module("of_an_archive.first")
    assert importers(archive) == 2, "one for the archive, and one for the package"
    monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    forget_archives()
    assert importers(archive) == 2, "this process is no worker"
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    forget_archives()
    assert importers(archive) == 0
    assert importlib.import_module("of_an_archive.second").NAME == "second"
