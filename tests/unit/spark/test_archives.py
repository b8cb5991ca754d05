"""What a Spark worker need not read again before each task."""

from __future__ import annotations

import gc
import importlib
import sys
import zipfile
import zipimport
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakemerge._internal import collector
from lakemerge.spark import archives
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


@pytest.fixture(autouse=True)
def _no_callback() -> Iterator[None]:
    yield
    collector._watching.clear()


def test_a_worker_forgets_importers_after_each_task_and_still_imports(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    forget_archives()
    forget_archives()
    assert collector._watching == [archives._forget]
    for name in ("first", "second"):
        found = importlib.import_module(f"of_an_archive.{name}")
        assert name == found.NAME
        made = importers(archive)
        gc.collect(1)
        assert made == importers(archive) >= 1, "the task goes on"
        gc.collect()
        assert importers(archive) == 0


def test_another_process_keeps_them(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    forget_archives()
    importlib.import_module("of_an_archive.first")
    gc.collect()
    assert importers(archive) == 2
