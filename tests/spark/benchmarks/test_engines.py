"""The engines and floors of the comparison, on a tiny workload: they do what they are asked, and answer right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks.compare.delta import Delta
from benchmarks.compare.deltalake import Deltalake
from benchmarks.compare.ducklake import DuckLake
from benchmarks.compare.engine import Engine, Place
from benchmarks.compare.lakemerge_arrow import LakeMergeOnArrow
from benchmarks.compare.lakemerge_spark import AUTO, INLINE, LakeMergeOnSpark
from benchmarks.compare.lance import Lance
from benchmarks.compare.queries import queries
from benchmarks.compare.workload import WIDE, WIDE_CHANGED, Parameters, Workload
from benchmarks.tpch import LINEITEM
from lakemerge import LakeTable
from lakemerge.read.reads_per_write import reads_per_write

pytestmark = pytest.mark.bench

PARAMETERS = Parameters(scale=0.001, commits=4, rounds=1, seed=5)


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    return Workload.prepare(tmp_path_factory.mktemp("compare"), PARAMETERS)


WITHOUT_SPARK: Mapping[str, Callable[[], Engine]] = {
    "lakemerge-arrow": LakeMergeOnArrow,
    "deltalake": Deltalake,
    "ducklake": DuckLake,
    "lance": Lance,
}


@pytest.fixture(params=["lakemerge", "lakemerge-inline", "delta", *WITHOUT_SPARK])
def engine(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[Engine]:
    if request.param in WITHOUT_SPARK:
        made = WITHOUT_SPARK[request.param]()
        yield made
        made.close()
    else:
        properties = INLINE if request.param == "lakemerge-inline" else None
        yield Delta(spark) if request.param == "delta" else LakeMergeOnSpark(spark, properties)


def test_engines_do_what_is_asked(engine: Engine, workload: Workload, tmp_path: Path) -> None:
    place = Place(tmp_path / "table", LINEITEM, 1 << 20)
    engine.load(place, workload.initial)
    # A merge inserts rows whatever was deleted, so it comes before the deletes.
    before, after = [workload.small(1), workload.late, workload.duplicates], [workload.deletes, workload.large]
    for frame in before:
        engine.upsert(place, frame)
    engine.merge(place, workload.small(2))
    for frame in after:
        (engine.delete if frame.deletes else engine.upsert)(place, frame)
    state = workload.state(workload.initial, [*before, workload.small(2), *after])
    assert problems(engine, place, workload, state, tmp_path / "dirty") == ()
    if isinstance(engine, LakeMergeOnSpark):
        merged = {file_slice.minor is not None for file_slice in LakeTable.open(place.path).opened.view.file_slices}
        assert merged == {"lakemerge.maintenance.inline" in engine.configuration}
    asked = queries(*workload.updated_key())
    assert {query.name: engine.answer(place, query) for query in asked} == {
        query.name: workload.answer(state, query) for query in asked
    }
    engine.compact(place)
    assert problems(engine, place, workload, state, tmp_path / "clean") == ()
    assert engine.configuration
    assert None not in engine.versions.values()


def test_engines_update_columns(engine: Engine, workload: Workload, tmp_path: Path) -> None:
    place = Place(tmp_path / "table", WIDE, 1 << 20)
    engine.load(place, workload.wide)
    frames = [workload.wide_change(0), workload.wide_change(1)]
    for frame in frames:
        engine.update_columns(place, frame, WIDE_CHANGED)
    assert problems(engine, place, workload, workload.wide_state(frames), tmp_path / "found") == ()


def problems(engine: Engine, place: Place, workload: Workload, state: Path, target: Path) -> tuple[str, ...]:
    engine.dump(place, target)
    return workload.problems(place.entity, target, state)


def test_reads_that_a_day_leaves_out_count(spark: SparkSession, workload: Workload, tmp_path: Path) -> None:
    engine, place = LakeMergeOnSpark(spark), Place(tmp_path / "table", LINEITEM, 1 << 20, AUTO)
    engine.load(place, workload.initial)
    engine.note_reads(place, 100)
    engine.upsert(place, workload.small(1))
    # The mean begins with 1, and the newest write has an eighth of the weight.
    assert reads_per_write(LakeTable.open(place.path).opened.view) == 1 + 99 / 8
