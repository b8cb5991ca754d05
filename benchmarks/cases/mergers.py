"""Every built-in merger against reading and writing the same rows as Parquet, on one core."""

from __future__ import annotations

import io
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.cases import merger_functions, paimon
from benchmarks.cases.merger_answers import Answers
from benchmarks.cases.merger_folds import Folds
from benchmarks.cases.merger_records import (
    AS_EXPRESSIONS,
    IN_ROUNDS,
    ROW_CASE,
    SCHEMA,
    Case,
    Inputs,
    hot_key,
    logs_only,
    merged,
    one_table,
    updates,
)
from benchmarks.cases.merger_records import CASES as CONFIGURATIONS
from benchmarks.harness import Rounds, Run, Seed
from benchmarks.measure import Contender, Report, interleave, usable_cores
from benchmarks.tables import OFF
from lakemerge import LakeTable, Settings

__all__ = ["mergers"]

_PARTS = ("updates", "versions", "functions", "row", "expression", "uniting", "pypaimon")
_PAIMON_TARGET = 20.0
_ROW_TARGET = 10.0
_BUILT_IN_TARGET = 2.0
_HOT_RECORDS = 1_000_000
_COUNTERS, _INCREMENTS = 30_000, 1_000
_PAIMON_ROUNDS = 3
"""It takes so long that a few rounds are enough."""


def mergers(
    run: Run,
    *,
    scale: Annotated[float, "part of the published sizes"] = 1.0,
    parts: Annotated[tuple[str, ...], "what to time"] = _PARTS,
    rounds: Rounds = 3,
    seed: Seed = 1,
) -> None:
    """Every built-in merger against reading and writing the same rows as Parquet, on one core.

    At scale 1: 2 M stored rows with 10 % log rows, and 1 M log-only records of five versions a key with 100,000 of one
    key, all of 12 columns; both once more with arrays, wide decimals, sketches, bitmaps, and records that take back
    what came before; what the row contract costs; rules of ``expression`` against the built-ins and the row contract,
    and 1 M records of one key; and a table of 1 M rows with five commits of 100,000 read by us and
    by pypaimon. Every result is compared with rows that DuckDB computed from the records, or that a plain fold in
    Python gives.
    """
    makers: Mapping[str, Sequence[Callable[..., Inputs]]] = {
        "updates": [updates],
        "versions": [logs_only],
        "functions": [merger_functions.changes, merger_functions.versions],
    }
    cores = pa.cpu_count()
    pa.set_cpu_count(1)
    try:
        for name in parts:
            for make in makers.get(name, ()):
                _built_ins(make(scale, seed=seed), run.report, rounds)
        if "row" in parts:
            _row_contract(updates(scale, seed=seed), run.report, rounds)
        if "expression" in parts:
            _expressions(scale, seed, run.report, rounds)
        if "uniting" in parts:
            _uniting(run, scale, rounds)
        if "pypaimon" in parts:
            if paimon.PYTHON.exists():
                _against_pypaimon(one_table(scale, seed=seed), run, rounds)
            else:
                run.report.say(f"NOT RUN: pypaimon: there is no {paimon.PYTHON} (make paimon)")
    finally:
        pa.set_cpu_count(cores)


def _built_ins(inputs: Inputs, report: Report, rounds: int) -> None:
    """The merge of each configuration for such records, against Parquet."""
    cases: Sequence[Case] = merger_functions.CASES if inputs.taken_back else CONFIGURATIONS
    answers = Folds(inputs) if inputs.taken_back else Answers(inputs)
    for case in cases:
        report.check(f"{inputs.name}, {case.name}", answers.problems(case, merged(case, inputs)))
    files = [_parquet(table) for table in (inputs.base, *inputs.frames)]
    floor = Contender("parquet", partial(_read_and_write, files))
    samples = interleave(
        [floor, *(Contender(case.name, partial(merged, case, inputs)) for case in cases)], rounds=rounds
    )
    for case in cases:
        what = f"{case.name}: {inputs.base.num_rows:,} rows + {inputs.log_rows:,}"
        report.timed(inputs.name, what, samples[case.name], samples["parquet"], target=case.target)


def _row_contract(inputs: Inputs, report: Report, rounds: int) -> None:
    """``event-time`` as a function of two rows, against the built-in."""
    built_in = next(case for case in CONFIGURATIONS if case.name == "event-time")
    report.check("row contract", Answers(inputs).problems(ROW_CASE, merged(ROW_CASE, inputs)))
    keys = pa.concat_tables([inputs.base, *inputs.frames]).column("k")
    pairs = inputs.rows - pc.count_distinct(keys).as_py()
    contenders = [Contender(case.name, partial(merged, case, inputs)) for case in (built_in, ROW_CASE)]
    samples = interleave(contenders, rounds=rounds)
    micros = {name: statistics.median(seconds) / pairs * 1e6 for name, seconds in samples.items()}
    what, detail = f"event-time in Python, {pairs:,} pairs of 12 columns", {"pairs": pairs, "us_per_pair": micros}
    report.timed("row", what, samples[ROW_CASE.name], samples[built_in.name], detail=detail)
    report.say(f"row contract: {micros[ROW_CASE.name]:.1f} us a pair, event-time {micros[built_in.name]:.1f} us")


def _expressions(scale: float, seed: int, report: Report, rounds: int) -> None:
    """Rules against the built-ins whose folds they are, rules in rounds against the row contract, and a hot key."""
    by_name = {case.name: case for case in CONFIGURATIONS}
    for inputs in (updates(scale, seed=seed), logs_only(scale, seed=seed)):
        for name, case in AS_EXPRESSIONS.items():
            built_in = by_name[name]
            same = merged(case, inputs).equals(merged(built_in, inputs))
            report.check(f"{inputs.name}, {case.name}", [] if same else ["other rows than the built-in's"])
            contenders = [_contender(each, inputs) for each in (case, built_in)]
            samples = interleave(contenders, rounds=rounds)
            what = f"{case.name}: {inputs.base.num_rows:,} rows + {inputs.log_rows:,}, against the built-in"
            report.timed("expression", what, samples[case.name], samples[name], target=_BUILT_IN_TARGET)
    inputs = one_table(scale, seed=seed)
    same = merged(IN_ROUNDS, inputs).equals(merged(ROW_CASE, inputs))
    report.check(IN_ROUNDS.name, [] if same else ["other rows than the row contract's"])
    contenders = [_contender(each, inputs) for each in (IN_ROUNDS, ROW_CASE)]
    samples = interleave(contenders, rounds=rounds)
    what = f"{IN_ROUNDS.name}: {inputs.base.num_rows:,} rows + {inputs.log_rows:,}, times faster"
    report.timed("expression", what, samples[ROW_CASE.name], samples[IN_ROUNDS.name], target=_ROW_TARGET, at_least=True)
    hot = hot_key(max(10, int(_HOT_RECORDS * scale)), seed=seed)
    for case in (AS_EXPRESSIONS["aggregate"], IN_ROUNDS):
        (timed,) = interleave([_contender(case, hot)], rounds=1).values()
        seconds = statistics.median(timed)
        each = seconds / hot.log_rows * 1e6
        report.say(f"hot key of {hot.log_rows:,} records, {case.name}: {seconds:.2f} s, {each:.0f} us each")


def _uniting(run: Run, scale: float, rounds: int) -> None:
    """Increments of counters in one frame: as one record of each counter, and apart, as a table keeps them that retains
    records."""
    keys, times = max(10, int(_COUNTERS * scale)), _INCREMENTS
    frame = pa.table({"id": np.tile(np.arange(keys), times), "n": np.ones(keys * times, dtype=np.int64)})
    start = pa.table({"id": np.arange(keys), "n": np.zeros(keys, dtype=np.int64)})
    retained = {"united": {}, "apart": {"lakemerge.recordRetention": "interval 1 day"}}
    tables: dict[str, LakeTable] = {}
    for how, properties in retained.items():
        tables[how] = LakeTable.create(
            run.folder / how,
            "id BIGINT, n BIGINT",
            key=["id"],
            merger="aggregate",
            options={"aggregates": {"n": "sum"}},
            buckets=4,
            properties={**OFF, **properties},
        )
        tables[how].upsert(start)
    what, report = f"{keys:,} counters, {times:,} increments each in one frame", run.report
    begun = {how: table.version for how, table in tables.items()}
    samples = interleave(
        [
            Contender(how, partial(table.upsert, frame), before=partial(_back, table, begun[how]))
            for how, table in tables.items()
        ],
        rounds=rounds,
    )
    report.timed("uniting", f"{what}: upsert, united against apart", samples["united"], samples["apart"])
    for how, table in tables.items():
        size = int(str(table.history()[0].metrics["numOutputBytes"]))
        report.value("uniting", f"{what}: files of the log, {how}", "bytes", size)
        report.value("uniting", f"{what}: rows of the log, {how}", "objects", table.detail().log_rows)
    samples = interleave([Contender(how, table.to_arrow) for how, table in tables.items()], rounds=rounds)
    report.timed("uniting", f"{what}: read, united against apart", samples["united"], samples["apart"])
    version = {how: table.version for how, table in tables.items()}
    contenders = [
        Contender(how, table.compact, before=partial(_back, table, version[how])) for how, table in tables.items()
    ]
    samples = interleave(contenders, rounds=rounds)
    report.timed("uniting", f"{what}: compaction, united against apart", samples["united"], samples["apart"])
    for how, table in tables.items():
        total = pc.sum(table.to_arrow().column("n")).as_py()
        report.check(f"uniting, {how}", [] if total == keys * times else [f"the total is {total:,}"])


def _back(table: LakeTable, version: int) -> None:
    """Take back what was done since a version."""
    if table.version != version:
        table.restore(version=version)


def _contender(case: Case, inputs: Inputs) -> Contender:
    """The merge of a case whose merger is there already, as it is when a table is open."""
    return Contender(case.name, partial(merged, case, inputs, (case.shape, case.built())))


def _against_pypaimon(inputs: Inputs, run: Run, rounds: int) -> None:
    """One dirty table of each, read whole: ours as it comes and on one core, theirs as it comes."""
    path, report = run.folder / "ours", run.report
    ours = LakeTable.create(path, SCHEMA, key=["k"], ordering=["ts"], buckets=4, properties=OFF)
    one_core = LakeTable.open(path, settings=Settings(threads=1))
    required = pa.schema([f.with_nullable(f.name != "k") for f in SCHEMA])
    with paimon.Paimon(run.folder / "theirs") as warehouse:
        theirs = warehouse.create(required, key=["k"], options={"sequence.field": "ts"})
        for rows in (inputs.base, *inputs.frames):
            ours.upsert(rows)
            warehouse.write(theirs, rows.cast(required))
        answers, newest = Answers(inputs), CONFIGURATIONS[0]
        for name, rows in {"ours": one_core.to_arrow(), "pypaimon": warehouse.read(theirs, all_files=False)}.items():
            in_order = rows.select(SCHEMA.names).cast(SCHEMA).sort_by("k")
            report.check(f"{name}, read", answers.problems(newest, in_order))
        every = usable_cores()
        contenders = [
            Contender("as it comes", ours.to_arrow, before=partial(pa.set_cpu_count, every)),
            Contender("one core", one_core.to_arrow, before=partial(pa.set_cpu_count, 1)),
            Contender("pypaimon", partial(warehouse.read_only, theirs), rounds=min(rounds, _PAIMON_ROUNDS)),
        ]
        samples = interleave(contenders, rounds=rounds)
        pa.set_cpu_count(1)
    what = f"pypaimon's merge-on-read of {inputs.base.num_rows:,} + {inputs.log_rows:,} rows, ours"
    for name, target in (("as it comes", _PAIMON_TARGET), ("one core", None)):
        report.timed("pypaimon", f"{what} {name}", samples["pypaimon"], samples[name], target=target, at_least=True)


def _read_and_write(files: Sequence[bytes]) -> None:
    for data in files:
        _parquet(pq.read_table(io.BytesIO(data), use_threads=False))


def _parquet(rows: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(rows, sink, compression="zstd", compression_level=1, store_decimal_as_integer=True)
    return sink.getvalue()
