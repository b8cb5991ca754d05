"""Files of CSV that readers may take for different things, and what three of them say.

``python -m tests.unit.ingest.csv_cases`` asks Spark and DuckDB anew, and writes their answers beside this file.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import random
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Case", "answers", "cases", "python_rows", "python_rows_of"]

ANSWERS = Path(__file__).with_name("csv_answers.json.gz")
Row = tuple[str, ...]

RECORDS = (
    "aDb",
    "QaQDb",
    "QaDbQDc",
    "QaNbQDc",
    "QaQQbQDc",
    "aQbDc",
    "aQDb",
    "QaQbDc",
    "QaDb",
    "QaEQbQDc",
    "aEQDb",
    "aENbDc",
    "aDbE",
    "Q QDb",
    " QaQDb",
    "QQDb",
    "aDQQQQ",
    "QNQDb",
    "aDb Q",
    "aDbDc",
)
"""Records with signs for delimiter, quote, escape and line end."""


class Case(NamedTuple):
    records: tuple[str, ...]
    delimiter: str
    quote: str | None
    escape: str | None
    line_end: str
    header: bool
    blank: int | None
    """After which record a line is empty."""
    ends: bool
    multiline: bool

    @property
    def text(self) -> str:
        lines = [*(["xDy"] if self.header else []), *self.records]
        if self.blank is not None:
            lines.insert(self.blank + self.header, "")
        text = "N".join(lines) + ("N" if self.ends else "")
        signs = {"D": self.delimiter, "Q": self.quote or '"', "E": self.escape or "\\", "N": self.line_end}
        return "".join(signs.get(sign, sign) for sign in text)


def cases() -> Iterator[Case]:
    """Each pair of records in the usual dialect, and some in every other."""
    for first, second in itertools.product(RECORDS, RECORDS):
        for multiline in (False, True):
            yield Case((first, second, "tDz"), ",", '"', None, "\n", True, None, True, multiline)
    chosen = random.Random(7)
    for delimiter, quote, escape, line_end, header, blank, ends, multiline in itertools.product(
        ",;",
        ('"', "'", None),
        (None, "\\", '"'),
        ("\n", "\r\n", "\r"),
        (True, False),
        (None, 1),
        (True, False),
        (True, False),
    ):
        own = "'" if quote == "'" and escape == '"' else escape
        for _ in range(2):
            records = tuple(chosen.choices(RECORDS, k=3))
            yield Case(records, delimiter, quote, own, line_end, header, blank, ends, multiline)


def python_rows(case: Case) -> list[Row]:
    """All rows of Python's reader, also those with another number of columns."""
    return python_rows_of(case.text, case)[case.header :]


def python_rows_of(text: str, case: Case) -> list[Row]:
    """The rows of some text in the dialect of a case."""
    reader = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=case.delimiter,
        quotechar=case.quote,
        quoting=csv.QUOTE_NONE if case.quote is None else csv.QUOTE_MINIMAL,
        escapechar=None if case.escape == case.quote else case.escape,
    )
    return [tuple(row) for row in reader if row]


def answers() -> list[dict[str, list[Row]]]:
    """For each case, the whole rows of the other readers; a reader that refuses the file has none."""
    stored = json.loads(gzip.decompress(ANSWERS.read_bytes()))
    return [{reader: [tuple(row) for row in rows] for reader, rows in one.items()} for one in stored]


def main() -> None:
    found = list(cases())
    told: list[dict[str, list[list[str]]]] = [{} for _ in found]
    with tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(found):
            (Path(folder) / f"{number:05d}.csv").write_text(case.text, newline="")
        _ask_duckdb(Path(folder), found, told)
        _ask_spark(Path(folder), found, told)
    ANSWERS.write_bytes(gzip.compress(json.dumps(told, separators=(",", ":")).encode(), mtime=0))


def _ask_duckdb(folder: Path, found: list[Case], told: list[dict[str, list[list[str]]]]) -> None:
    import duckdb

    for number, case in enumerate(found):
        try:
            rows = duckdb.read_csv(
                str(folder / f"{number:05d}.csv"),
                header=case.header,
                delimiter=case.delimiter,
                quotechar=case.quote or "",
                escapechar=case.escape or case.quote or "",
                columns={"x": "VARCHAR", "y": "VARCHAR"},
                auto_detect=False,
                strict_mode=False,
            ).fetchall()
        except duckdb.Error:
            rows = []
        told[number]["duckdb"] = [[value or "" for value in row] for row in rows]


def _ask_spark(folder: Path, found: list[Case], told: list[dict[str, list[list[str]]]]) -> None:
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import input_file_name, monotonically_increasing_id

    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    dialects: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for number, case in enumerate(found):
        dialects[case.delimiter, case.quote, case.escape, case.header, case.multiline].append(number)
        told[number]["spark"] = []
    for (delimiter, quote, escape, header, multiline), numbers in dialects.items():
        rows = (
            spark.read.options(
                sep=delimiter, quote=quote or "", escape=escape or "", header=header, multiLine=multiline
            )
            .schema("x STRING, y STRING, bad STRING")
            .option("columnNameOfCorruptRecord", "bad")
            .csv([str(folder / f"{number:05d}.csv") for number in numbers])
            .select("x", "y", "bad", input_file_name().alias("file"), monotonically_increasing_id().alias("at"))
            .cache()
        )
        for x, y, bad, file, _ in sorted(rows.collect(), key=lambda row: row["at"]):
            if bad is None:
                told[int(Path(file).stem)]["spark"].append([x or "", y or ""])
        rows.unpersist()
    spark.stop()


if __name__ == "__main__":
    main()
