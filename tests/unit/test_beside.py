"""Which log files a scan can tell apart; a scan of their records is compared in tests/spark/test_beside_spark.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lakemerge.read import beside
from lakemerge.read.beside import are_few
from lakemerge.slices.view import Tile
from tests.unit.faults import create, frame


@pytest.fixture
def tile(tmp_path: Path) -> Tile:
    table = create(tmp_path / "t")
    table.upsert(frame([(1, 1, "base")]))
    for number in range(3):
        table.upsert(frame([(1, number, "log")]))
    (tile,) = table.view.tiles
    return tile


def renamed(tile: Tile, *paths: str) -> Tile:
    blocks = [
        replace(block, file=replace(block.file, path=path)) for block, path in zip(tile.blocks, paths, strict=True)
    ]
    return replace(tile, blocks=tuple(blocks))


def test_log_files_have_names_of_their_own(tile: Tile) -> None:
    assert are_few([tile, tile])
    assert are_few([renamed(tile, "a/1.parquet", "a/2.parquet", "b/3.parquet")])
    assert are_few([renamed(tile, "a/1.parquet", "a/1.parquet", "b/3.parquet")]), "one file, twice"
    assert not are_few([renamed(tile, "a/1.parquet", "a/2.parquet", "b/1.parquet")])
    assert not are_few([renamed(tile, "a/1 .parquet", "a/2.parquet", "b/3.parquet")]), "Spark may write it another way"
    assert not are_few([renamed(tile, "a/%31.parquet", "a/2.parquet", "b/3.parquet")])


def test_there_are_not_too_many(tile: Tile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "_MOST_LOGS", 3)
    assert are_few([tile])
    monkeypatch.setattr(beside, "_MOST_LOGS", 2)
    assert not are_few([tile])
