"""Spark's grammar says what a filter means: which operator takes which values, and what is no condition at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from lakemerge import LakeTable
from lakemerge.errors import FilterError
from lakemerge.read.filter.filter import parse_filter
from lakemerge.schema.schema import to_arrow_schema, to_ddl
from tests.property.effort import examples

SCHEMA = to_arrow_schema("id INT, b BOOLEAN, c BOOLEAN, i INT, j INT, n BIGINT, s STRING, t STRING, f DOUBLE")
BOOLEANS, INTEGERS, TEXTS = (True, False, None), (0, 1, -1, 2, None), ("a", "1", "true", "", None)
ROWS = pa.Table.from_pylist(
    [
        {
            "id": number, "b": BOOLEANS[number % 3], "c": BOOLEANS[number // 3 % 3], "i": INTEGERS[number % 5],
            "j": INTEGERS[number // 5 % 5], "n": INTEGERS[number // 2 % 5], "s": TEXTS[number % 5],
            "t": TEXTS[number // 4 % 5], "f": [0.0, -0.0, 1.5, float("nan"), None][number // 3 % 5],
        }
        for number in range(60)
    ],
    SCHEMA,
)  # fmt: skip
FIXED = [
    "b = c BETWEEN false AND true", "b = i IN (1, 5)", "b = c < true", "b < c = true", "i < j = b", "b = i < j",
    "i = j = b", "i <> j <=> c", "b <=> c <=> true", "b = c IS NULL", "b = c IS NOT NULL", "i = j IS NULL",
    "b IS NULL = c", "b IS NULL IS NULL", "i IN (1) = true", "NOT b = c", "NOT b = c AND c", "!b = c", "! b AND c",
    "NOT NOT b", "!!b", "b = NOT c", "b AND NOT c OR b", "b OR c AND b", "NOT b OR c", "NOT i IN (1, 2)",
    "i BETWEEN 0 AND 1 = true", "b BETWEEN false AND i = j", "b BETWEEN i = j AND true", "i NOT BETWEEN 0 AND 1 AND b",
    "NOT i BETWEEN 0 AND 1", "b IS DISTINCT FROM c = b", "b IS NOT DISTINCT FROM i = j", "i = j IS DISTINCT FROM b",
    "b = c IN (true)", "i + 1 IN (1, 2)", "-i IN (1)", "- i = j", "-i + j = 0", "- -i = i", "i - -1 = 2", "2 -i = 1",
    "i * j + 1 = 1", "i + j * 2 = 1", "i - j - 1 = 0", "i % 2 * 2 = 0", "i * 2 % 3 = 1", "7 DIV 2 * i = 3",
    "i DIV 2 % 2 = 0", "s || t = 'aa'", "s || i + 1 = 'a2'", "i + 1 || s = '2a'", "s || t || s = 'a1a'",
    "s || 1 = 'a1'",
    "i - 1 || s = '0a'", "s LIKE 'a' = b", "s LIKE t || '%'", "b = s LIKE 'true'", "s = t LIKE 'true'",
    "s NOT LIKE 'a' AND b",
    "NOT s LIKE 'a'", "s RLIKE 'a' OR b", "s = t RLIKE 'tr'", "s LIKE 'a' IS NULL", "s LIKE 'a' ESCAPE '!' AND b",
    "s ILIKE 'A'", "-1::string = '-1'", "-i::string = '-1'", "i::string = '1'", "-1::int = i", "i + 1::bigint = 2",
    "i = j::boolean", "b::int = i", "b::int + 1 = 2", "- 2::string = '-2'", "CASE WHEN i = 1 THEN b ELSE c END = c",
    "CASE WHEN b THEN i END IN (1)", "CASE i WHEN 1 THEN b END", "CASE i = j WHEN b THEN c END", "i == j", "i != j",
    "i <> j", "i <=> j = b", "b == c == true", "i >= j <= b", "b IS TRUE = c", "b = c IS TRUE", "b = c IS NOT FALSE",
    "i IS NULL AND b", "i IS NOT NULL = b", "(b = c) IS NULL", "(i IN (1)) = b", "b = (i IN (1))", "b = (NOT c)",
    "i ! IN (1)", "i NOT IN (1)", "s ! LIKE 'a'", "i & 1 = 1", "i | 1 = 1", "i ^ 1 = 0", "~i = 0", "i << 1 = 2",
    "f = 0 = b", "i IN (1, 2) AND b = c", "b AND i BETWEEN 0 AND 1 OR c", "if(b = c, i, j) = 1 = b",
    "coalesce(b, c) = c IS NULL", "i IN (j = 1)", "b IN (i = 1, j = 1)", "i !> j", "i !< j", "i = 1 = 1", "b = 1",
    "s = 1", "i = 'x' = b", "s IS TRUE", "i IS TRUE", "i AND b", "NOT i", "b + 1 = 2", "i = j AND", "i =",
    "= i", "i = = j",
    "i BETWEEN 1", "i IN ()", "i IN 1", "b b", "b c", "()", "(b", "b)", "i IS", "i IS NOT", "b IS UNKNOWN", "NOT",
    "b NOT", "b NOT NULL", "i NOTNULL", "i ISNULL", "b XOR c", "b && c", "b || c", "i IN (1) IN (true)",
    "s LIKE", "f <> f",
]  # fmt: skip


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(ROWS, to_ddl(SCHEMA)).coalesce(1)


def one_of(random: Random, makers: Sequence[Callable[[], str]]) -> str:
    return random.choice(makers)()


def texts(random: Random, count: int) -> list[str]:
    return [boolean(random, 3) for _ in range(count)]


def boolean(random: Random, depth: int) -> str:
    """A condition without the parentheses that would say what was meant."""
    if depth == 0 or random.random() < 0.1:
        # Spark takes no condition that is a bare NULL, which has no type. Here it keeps no row.
        return random.choice(["b", "c", "true", "false", "CAST(NULL AS BOOLEAN)", "b", "c"])

    def inner() -> str:
        found = boolean(random, depth - 1)
        return f"({found})" if random.random() < 0.15 else found

    def number() -> str:
        return integer(random, depth - 1)

    comparison = random.choice(["=", "==", "<>", "!=", "<", "<=", ">", ">=", "<=>"])
    negated = random.choice(["", "NOT "])
    return one_of(
        random,
        [
            lambda: f"{inner()} AND {inner()}", lambda: f"{inner()} OR {inner()}", lambda: f"NOT {inner()}",
            lambda: f"!{inner()}", lambda: f"{inner()} {comparison} {inner()}",
            lambda: f"{inner()} {comparison} {inner()}", lambda: f"{number()} {comparison} {number()}",
            lambda: f"{number()} {comparison} {number()}", lambda: f"{number()} {negated}IN ({number()}, 1)",
            lambda: f"{inner()} {negated}IN ({inner()}, {inner()})",
            lambda: f"{inner()} {negated}BETWEEN {inner()} AND {inner()}",
            lambda: f"{number()} {negated}BETWEEN {number()} AND {number()}",
            lambda: f"{inner()} IS {negated}NULL", lambda: f"{number()} IS {negated}NULL",
            lambda: f"{inner()} IS {negated}{random.choice(['TRUE', 'FALSE'])}",
            lambda: f"{inner()} IS {negated}DISTINCT FROM {inner()}",
            lambda: f"{number()} IS {negated}DISTINCT FROM {number()}",
            lambda: f"{text(random, depth - 1)} {comparison} {text(random, depth - 1)}",
            lambda: f"{text(random, depth - 1)} {negated}LIKE {random.choice(['t', repr('a%'), repr('tr_e')])}",
            lambda: f"{text(random, depth - 1)} {negated}RLIKE 'a|1'",
            lambda: f"CASE WHEN {inner()} THEN {inner()} ELSE {inner()} END",
            lambda: f"CASE {number()} WHEN {number()} THEN {inner()} END",
        ],
    )  # fmt: skip


def integer(random: Random, depth: int) -> str:
    if depth <= 0 or random.random() < 0.3:
        return random.choice(["i", "j", "0", "1", "-1", "2", "n"])

    def inner() -> str:
        found = integer(random, depth - 1)
        return f"({found})" if random.random() < 0.15 else found

    return one_of(
        random,
        [
            lambda: f"{inner()} {random.choice('+-*')} {inner()}", lambda: f"{inner()} % 3",
            lambda: f"{inner()} DIV 2", lambda: f"-{inner()}" if random.random() < 0.5 else f"- {inner()}",
            lambda: f"{inner()}::int", lambda: f"length({text(random, depth - 1)})",
            lambda: f"CASE WHEN {boolean(random, depth - 1)} THEN {inner()} END", lambda: "b::int",
        ],
    ).replace("--", "- -")  # fmt: skip


def text(random: Random, depth: int) -> str:
    if depth <= 0 or random.random() < 0.4:
        return random.choice(["s", "t", "'a'", "'1'"])
    return one_of(
        random,
        [
            lambda: f"{text(random, depth - 1)} || {text(random, depth - 1)}",
            lambda: f"{integer(random, depth - 1)}::string",
            lambda: f"{text(random, depth - 1)} || {integer(random, 0)}",
            lambda: f"{integer(random, 0)} + {integer(random, 0)} || {text(random, depth - 1)}",
        ],
    )  # fmt: skip


def of_spark(frame: DataFrame, conditions: list[str]) -> dict[str, list[int]]:
    """The ids of the rows that Spark keeps, by condition, of those that Spark can evaluate on all rows."""
    known = []
    for condition in dict.fromkeys(conditions):
        try:
            frame.where(f"({condition})")  # without the parentheses, a word behind it may be its name
        except PySparkException:
            continue
        known.append(condition)
    return reduce(or_, (evaluated(frame, known[start : start + 150]) for start in range(0, len(known), 150)))


def evaluated(frame: DataFrame, conditions: list[str]) -> dict[str, list[int]]:
    kept = [
        F.collect_list(F.expr(f"CASE WHEN coalesce(({condition}), false) THEN id END")).alias(f"f{n}")
        for n, condition in enumerate(conditions)
    ]
    try:
        return dict(zip(conditions, map(sorted, frame.agg(*kept).collect()[0]), strict=True))
    except PySparkException:
        if len(conditions) == 1:
            return {}
        half = len(conditions) // 2
        return evaluated(frame, conditions[:half]) | evaluated(frame, conditions[half:])


def of_ours(condition: str) -> list[int] | None:
    try:
        parsed = parse_filter(condition, SCHEMA)
        assert parsed is not None
        return sorted(parsed.kept(ROWS)["id"].to_pylist())
    except FilterError:
        return None


def differences(frame: DataFrame, conditions: list[str]) -> list[str]:
    """Where this library keeps other rows, or answers what Spark refuses."""
    theirs = of_spark(frame, conditions)
    return [
        f"{condition}: {own} and not {theirs.get(condition)}"
        for condition in conditions
        if (own := of_ours(condition)) is not None and own != theirs.get(condition)
    ]


@pytest.mark.long
def test_each_operator_takes_what_it_takes_in_spark(frame: DataFrame) -> None:
    assert differences(frame, FIXED) == []
    assert sum(of_ours(condition) is not None for condition in FIXED) > len(FIXED) // 2


def test_random_conditions(frame: DataFrame) -> None:
    conditions = texts(Random(), examples(300))
    assert differences(frame, conditions) == []
    assert sum(of_ours(condition) is not None for condition in conditions) > len(conditions) // 5


def test_reads_of_a_table_mean_the_same(spark: SparkSession, tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path, SCHEMA, key=["id"], buckets=2, spark=spark)
    table.upsert(ROWS)
    table.compact()
    table.upsert(ROWS.slice(20, 9))
    for condition in ("b = c BETWEEN false AND true", "i < j = b", "b = c IS NULL", "NOT b = c AND i > 0"):
        wanted = sorted(row.id for row in table.to_df().where(condition).collect())
        assert sorted(row.id for row in table.to_df(columns=["id"], filter=condition).collect()) == wanted, condition
        assert sorted(table.to_arrow(columns=["id"], filter=condition)["id"].to_pylist()) == wanted, condition
