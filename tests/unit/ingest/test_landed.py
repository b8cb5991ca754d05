"""What people land: archives, other encodings and line ends, documents, comments, other times; and what tables get of
it beside the records."""

from __future__ import annotations

import bz2
import datetime as dt
import gzip
import io
import json
import lzma
import pickle
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakemerge import InputError, LakeTable
from lakemerge.ingest import Files
from lakemerge.ingest.formats import json_lines, lines
from lakemerge.ingest.formats.choose import chosen_format
from lakemerge.ingest.formats.delimited import Delimited
from lakemerge.ingest.formats.json_lines import JsonLines, cut_documents
from lakemerge.ingest.formats.lines import MAX_RECORD_BYTES, Quoting, cut_block, cut_stream
from lakemerge.ingest.formats.text_lines import TextLines
from lakemerge.ingest.formats.times import EPOCHS, TimeFormat, time_format_problem
from lakemerge.ingest.single_file import SingleFile
from lakemerge.ingest.source import FileUnreadableError, SourceFile
from tests.unit.ingest.landing import frame_of, landed, read_blocks

PAIRS = pa.schema([("i", pa.int64()), ("s", pa.string())])
UTC = dt.UTC


def taken(
    folder: Path, name: str, data: bytes, columns: str = "i BIGINT, s STRING", **how: Any
) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of a table that took up one file, and the reasons of what it did not take up."""
    landed(folder / "in" / name, data)
    table = LakeTable.create(folder / "t", columns, key=["i"])
    kind = "json" if ".json" in name else "text" if ".txt" in name else "csv"
    files = Files(folder / "in", format=kind, options=how.pop("options", {}))
    job = table.ingest("job", files, **how)
    job.run()
    reasons = [str(file.reason) for file in job.files() if file.reason] + job.rejects()["reason"].to_pylist()
    return LakeTable.open(table.url).to_arrow().sort_by("i").to_pylist(), reasons


def zipped(data: bytes, *names: str) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("folder/", b"")
        archive.writestr("__MACOSX/._x", b"junk")
        for name in names or ("x.csv",):
            archive.writestr(name, data)
    return sink.getvalue()


def lz4(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "lz4") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


@pytest.mark.parametrize(
    ("ending", "pack"),
    [("zip", zipped), ("xz", lzma.compress), ("lz4", lz4), ("gz", gzip.compress), ("bz2", bz2.compress)],
)
def test_compressed_files_are_read_and_cut_ones_are_refused(
    ending: str, pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    data = b"i,s\n" + b"".join(b"%d,%d\n" % (k, k * 7919) for k in range(5000))
    rows, reasons = taken(tmp_path / "whole", f"a.csv.{ending}", pack(data))
    assert (rows, reasons) == ([{"i": k, "s": str(k * 7919)} for k in range(5000)], [])
    rows, (reason,) = taken(tmp_path / "cut", f"a.csv.{ending}", pack(data)[:-200])
    assert rows == []
    assert f"a.csv.{ending} cannot be read as csv" in reason


def test_an_archive_of_several_files_is_refused_by_name(tmp_path: Path) -> None:
    _, (reason,) = taken(tmp_path, "a.zip", zipped(b"i,s\n", "x.csv", "y.csv"))
    assert "holds 2 files (x.csv, y.csv); it must hold one: unpack it" in reason


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig", "shift_jis", "cp932"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_encodings_of_several_bytes(encoding: str, line_end: str) -> None:
    # The second byte of this sign is a backslash in Shift JIS.
    text = line_end.join(["i|s", "1|ソa", '2|"b', 'c"', ""])
    chosen = Delimited(encoding=encoding if encoding != "utf-8-sig" else "utf-8", delimiter="|", multiline=True)
    good, bad = read_blocks(text.encode(encoding), chosen, frame_of(PAIRS))
    assert (good, bad) == ([(1, "ソa"), (2, f"b{line_end}c")], [])


def test_utf_16_is_told_from_damage(tmp_path: Path) -> None:
    for name in ("a.csv", "a.json", "a.txt"):
        _, (reason,) = taken(
            tmp_path / name, name, "i,s\n1,a\n".encode("utf-16"), columns="i STRING", **_text_of_keys(name)
        )
        assert "set the option encoding to 'utf-16'" in reason
    rows, _ = taken(tmp_path / "j", "a.json", '{"i":1,"s":"é"}\n'.encode("utf-16"), options={"encoding": "utf-16"})
    assert rows == [{"i": 1, "s": "é"}]


def _text_of_keys(name: str) -> dict[str, Any]:
    return {"options": {"column": "i"}} if name == "a.txt" else {}


LINES = ["", "a", "bc", '{"i":1}', '{"i":2}']


@pytest.mark.parametrize("seed", range(60))
def test_lines_end_as_in_pythons_universal_newlines(seed: int) -> None:
    chosen = random.Random(seed)
    data = "".join(chosen.choice(LINES) + chosen.choice(["\n", "\r\n", "\r"]) for _ in range(8)).encode()
    data += chosen.choice([b"", b"end"])
    expected = [line.rstrip(b"\r\n") for line in io.BytesIO(data.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))]
    block, portion = chosen.randint(1, 9), chosen.randint(1, 9)
    found: list[bytes] = []
    for start in range(0, len(data), block):
        end = min(start + block, len(data))
        for part in cut_block(pa.BufferReader(data), start, end, size=len(data), portion_bytes=portion):
            found += list(part)
    assert found == [line for line in expected if line]
    rows, bad = read_blocks(data, TextLines(), frame_of(pa.schema([("value", pa.string())])), block_bytes=block)
    assert (rows, bad) == ([(line.decode(),) for line in expected], [])


def test_a_line_break_in_quotes_between_blocks_is_told() -> None:
    data = b'i,s\n1,a\n2,"b\nc\nd"\n3,e\n'
    whole = read_blocks(data, Delimited(), frame_of(PAIRS))
    assert whole == ([(1, "a"), (3, "e")], [(8, '2,"b\nc\nd"')])
    with pytest.raises(FileUnreadableError, match=r"record at byte 8 has a line break between quotes .* set multiline"):
        read_blocks(data, Delimited(), frame_of(PAIRS), block_bytes=10)


def test_a_quote_that_is_never_closed_is_one_bad_line() -> None:
    data = b'i,s\n1,"a\n' + b"".join(b"%d,x\n" % k for k in range(2, 50))
    for block in (1 << 20, 7, 30):
        good, bad = read_blocks(data, Delimited(), frame_of(PAIRS), block_bytes=block)
        assert ([row[0] for row in good], bad) == (list(range(2, 50)), [(4, '1,"a')])
    good, bad = read_blocks(data, Delimited(multiline=True), frame_of(PAIRS))
    assert (good, bad) == ([], [(4, data[4:-1].decode())])


def test_comments_and_lines_before_the_header() -> None:
    data = b'made by "x\n\n# it\'s "late\ni,s\n1,"#a\n#b"\n#2,"\n3,c\n'
    chosen = Delimited(skip_lines=2, comment="#", multiline=True)
    assert read_blocks(data, chosen, frame_of(PAIRS)) == ([(1, "#a\n#b"), (3, "c")], [])
    bare = Delimited(skip_lines=2, comment="#", header=False, names=("i", "s"))
    data = b"first,line\nsecond\n1,a\n#x\n2,b\n"
    for block in range(1, len(data)):
        assert read_blocks(data, bare, frame_of(PAIRS), block_bytes=block) == ([(1, "a"), (2, "b")], [])


class Counted:
    """A file that says how often it was read, and how many bytes were asked for."""

    def __init__(self, data: bytes) -> None:
        self.file, self.bytes = io.BytesIO(data), 0

    def read(self, size: int) -> bytes:
        data = self.file.read(size)
        self.bytes += len(data)
        return data

    def seek(self, place: int) -> None:
        self.file.seek(place)


@pytest.mark.parametrize("quoting", [None, Quoting('"', None), Quoting('"', None, multiline=False)])
def test_a_long_line_is_looked_at_in_proportion_to_its_length(
    quoting: Quoting | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = 0
    before = lines._plain

    def counted(data: bytes, *, final: bool) -> lines.Bounds:
        nonlocal seen
        seen += len(data)
        return before(data, final=final)

    monkeypatch.setattr(lines, "_plain", counted)
    data = b'"' + b"x" * (4 << 20) + b'"\nend\n'
    for whole in (False, True):
        file: Any = Counted(data)
        seen = 0
        if whole:
            found = cut_stream(file, quoting=quoting, portion_bytes=1 << 10)
        else:
            found = cut_block(file, 0, 10, size=len(data), quoting=quoting, portion_bytes=1 << 10)
        assert sum(map(len, found)) in (1, 2)
        assert seen < 8 * len(data)
        assert file.bytes <= 2 * len(data)


def test_a_wholly_bad_file_is_given_up_at_its_first_bad_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    before = Delimited._batch

    def counted(*given: Any) -> pa.RecordBatch:
        nonlocal calls
        calls += 1
        return before(*given)

    monkeypatch.setattr(Delimited, "_batch", counted)
    some: dict[str, Any] = {"bad_records": "quarantine", "max_bad_records": 5}
    none: dict[str, Any] = {}
    for number, (line, more) in enumerate([("x,y\n", none), ("x;y\n", none), ("x,y\n", some)]):
        calls = 0
        rows, (reason,) = taken(tmp_path / str(number), "a.csv", ("i,s\n" + line * 50_000).encode(), **more)
        assert (rows, calls < 60) == ([], True)
        assert "(line 2)" in reason or "(line 7)" in reason
    assert "if its columns end with another character than ','" in taken(tmp_path / "d", "a.csv", b"i,s\n1;2\n")[1][0]


def test_many_bad_values_are_found_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    before = Delimited._batch

    def counted(*given: Any) -> pa.RecordBatch:
        nonlocal calls
        calls += 1
        return before(*given)

    monkeypatch.setattr(Delimited, "_batch", counted)
    lines = [f"{k},{('x' if k % 3 else k)},1.5,{'no' if k % 5 else 'true'},2026-01-0{k % 9}" for k in range(3000)]
    how: dict[str, Any] = {"bad_records": "quarantine", "max_bad_records": None}
    columns = "i BIGINT, s INT, f DOUBLE, b BOOLEAN, d DATE"
    rows, reasons = taken(tmp_path, "a.csv", ("i,s,f,b,d\n" + "\n".join(lines)).encode(), columns, **how)
    # 2026-01-00 is no date, though it looks like one.
    assert [row["i"] for row in rows] == [k for k in range(0, 3000, 15) if k % 9]
    assert len(reasons) == 3000 - len(rows)
    assert "column 's': invalid value 'x'" in reasons
    assert calls < 500, "not some for each of 2,867 bad lines"


@pytest.mark.parametrize("seed", range(80))
def test_documents_are_those_of_pythons_parser(seed: int) -> None:
    chosen = random.Random(seed)
    texts = ['a"b', "[", "]}", "{", "é\\", ",", "\n"]

    def value(depth: int) -> Any:
        kind = chosen.randint(0, 5 if depth < 3 else 3)
        if kind == 4:
            return [value(depth + 1) for _ in range(chosen.randint(0, 3))]
        if kind == 5:
            return {chosen.choice(texts): value(depth + 1) for _ in range(chosen.randint(0, 3))}
        return chosen.choice([None, True, 1.5, chosen.choice(texts)])

    records = [{"i": k, "v": value(0)} for k in range(chosen.randint(0, 6))]
    indent = chosen.choice([None, 2])
    if chosen.random() < 0.5:
        text = json.dumps(records, indent=indent, ensure_ascii=False)
    else:
        text = chosen.choice(["", "\n", " \r\n"]).join(json.dumps(one, indent=indent) for one in records)
    data = chosen.choice([b"", b"\xef\xbb\xbf"]) + text.encode() + chosen.choice([b"", b"\n"])
    found = [
        line
        for part in cut_documents(pa.BufferReader(data), portion_bytes=chosen.randint(1, 60))
        for line in part.without_mark()
    ]
    assert [json.loads(line) for line in found] == records


@pytest.mark.parametrize(
    ("text", "good", "bad"),
    [
        ('[{"i":1}, 5, {"i":2}]', [1, 2], [(10, "5")]),
        ('[{"i":1},, {"i":2}]', [1, 2], [(9, ",")]),
        ('{"i":1} junk {"i":2}', [1, 2], [(8, "junk")]),
        ('[{"i":1}]\n[]\n[{"i":2}] {"i":3}', [1, 2, 3], []),
        ('{"i":1}\n{"i":2', [1], [(8, '{"i":2')]),
        ('{"i":1}\n{"i":"x}', [1], [(8, '{"i":"x}')]),
        ('[{"i":1},{"i":"x"}]', [1], [(9, '{"i":"x"}')]),
    ],
)
def test_a_bad_document_is_set_aside_as_a_whole(text: str, good: list[int], bad: list[Any]) -> None:
    rows, aside = read_blocks(text.encode(), JsonLines(multiline=True), frame_of(PAIRS))
    assert ([row[0] for row in rows], aside) == (good, bad)


@pytest.mark.parametrize("text", ['[{"i":1}', '[{"i":1}}]', ']{"i":1}', '{"i":1}]'])
def test_brackets_that_do_not_match_are_no_documents(text: str) -> None:
    with pytest.raises(FileUnreadableError, match=r"(is not closed|does not match)"):
        read_blocks(text.encode(), JsonLines(multiline=True), frame_of(PAIRS))


def test_a_document_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "MAX_RECORD_BYTES", 100)
    with pytest.raises(FileUnreadableError, match="the record at byte 8 has more than 100 bytes"):
        list(cut_documents(pa.BufferReader(b'{"i":1}\n{"i":"' + b"x" * 500), portion_bytes=20))
    assert MAX_RECORD_BYTES > 100


def test_arrays_without_the_option_are_told_of_it(tmp_path: Path) -> None:
    for number, text in enumerate(['[{"i":1},\n{"i":2}]\n', '{\n"i":1}\n', '[{"i":1}]\n']):
        rows, (reason,) = taken(tmp_path / str(number), "a.json", text.encode())
        assert rows == []
        assert "set multiline (multiline=true) (line 1)" in reason


def moment(*parts: int) -> dt.datetime:
    return dt.datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type, misc]


TIMES: list[tuple[str, dict[str, str | None]]] = [
    (
        "%d.%m.%Y %H:%M:%S",
        {"1.2.2020 03:04:05": "2020-02-01T03:04:05", "31.2.2020 00:00:00": None, "1.2.2020 03:04:05 ": None},
    ),
    (
        "%m/%d/%y %I:%M %p",
        {"2/1/69 12:04 AM": "1969-02-01T00:04:00", "2/1/68 1:04 pm": "2068-02-01T13:04:00", "2/1/68 13:04 pm": None},
    ),
    (
        "%d/%b/%Y:%T %z",
        {"1/Feb/2020:12:04:05 +0200": "2020-02-01T10:04:05", "1/may/2020:12:04:05 -03:30": "2020-05-01T15:34:05"},
    ),
    ("%A, %d %B %Y %R", {"Saturday, 1 February 2020 12:04": "2020-02-01T12:04:00"}),
    ("%F %H:%M:%S.%f", {"2020-02-01 12:04:05.5": "2020-02-01T12:04:05.5", "2020-02-01 12:04:05.1234567": None}),
    (
        "epoch_s",
        {
            "1700000000": "2023-11-14T22:13:20",
            "-1.25": "1969-12-31T23:59:58.75",
            "1700000000.1234567": None,
            "1e3": None,
            "253402300800": None,
        },
    ),
    (
        "epoch_ms",
        {"1700000000123": "2023-11-14T22:13:20.123", "1700000000123.25": "2023-11-14T22:13:20.12325"},
    ),
    (
        "epoch_us",
        {
            "1700000000123456": "2023-11-14T22:13:20.123456",
            "1700000000123456.0": "2023-11-14T22:13:20.123456",
            "1.5": None,
        },
    ),
    ("epoch_ns", {"1700000000123456000": "2023-11-14T22:13:20.123456", "1700000000123456001": None}),
]


@pytest.mark.parametrize(("written", "values"), TIMES)
def test_other_times(written: str, values: dict[str, str | None]) -> None:
    assert time_format_problem(written, dates=False) is None
    found, problems = TimeFormat(written).read(pa.array([*values, None]), pa.timestamp("us", "UTC"))
    expected = [None if text is None else dt.datetime.fromisoformat(f"{text}+00:00") for text in values.values()]
    assert found.to_pylist() == [*expected, None]
    assert sorted(problems) == [place for place, one in enumerate(expected) if one is None]


@pytest.mark.parametrize("written", ["%d.%m.%Y", "%Y%m%d", "%d %b %y"])
def test_formats_mean_what_they_mean_to_python(written: str) -> None:
    days = [dt.date(1999, 12, 31), dt.date(2024, 2, 29), dt.date(2001, 1, 1)]
    found, problems = TimeFormat(written).read(pa.array([day.strftime(written) for day in days]), pa.date32())
    assert (found.to_pylist(), problems) == (days, {})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"timestamp_format": "%H:%M"}, "has no year and no month and no day"),
        ({"timestamp_format": "%Y-%m-%d %Q"}, "has %Q; it may have"),
        ({"date_format": "epoch_s"}, "counts times, and no dates"),
        ({"date_format": {"d": "%Y%Y%m%d"}}, "of column 'd': .* something twice"),
        ({"timestamp_format": 5}, "is not text"),
    ],
)
def test_formats_that_say_no_time_are_refused(options: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=problem):
        taken(tmp_path, "a.csv", b"i,s\n", options=options)


def test_times_of_columns_in_csv_and_json(tmp_path: Path) -> None:
    columns = "i BIGINT, at TIMESTAMP, d DATE, n STRUCT<at: TIMESTAMP>"
    options = {"timestamp_format": "epoch_ms", "date_format": {"d": "%d.%m.%Y"}}
    data = (
        b'{"i":1,"at":1700000000123,"d":"1.2.2020"}\n{"i":2,"at":"5","n":{"at":1700000000123.5}}\n{"i":3,"at":true}\n'
    )
    how: dict[str, Any] = {"options": options, "bad_records": "quarantine", "max_bad_records": None}
    rows, reasons = taken(tmp_path / "j", "a.json", data, columns, **how)
    first, second = moment(2023, 11, 14, 22, 13, 20, 123000), moment(2023, 11, 14, 22, 13, 20, 123500)
    assert [(row["at"], row["d"], row["n"]) for row in rows] == [
        (first, dt.date(2020, 2, 1), None),
        (moment(1970, 1, 1, 0, 0, 0, 5000), None, {"at": second}),
    ]
    assert len(reasons) == 1
    data = b"i,at,d\n1,1700000000123,01.02.2020\n2,x,\n3,,2020-02-01\n"
    rows, reasons = taken(tmp_path / "c", "a.csv", data, columns, **how)
    assert [(row["i"], row["at"], row["d"]) for row in rows] == [(1, first, dt.date(2020, 2, 1))]
    assert [reason.partition(":")[0] for reason in reasons] == ["column 'at'", "column 'd'"]
    assert set(EPOCHS) == {"epoch_s", "epoch_ms", "epoch_us", "epoch_ns"}


@pytest.mark.parametrize("name", ["a.csv", "a.json", "b.csv"])
def test_columns_for_the_file_of_a_record(name: str, tmp_path: Path) -> None:
    columns = "src STRING, i BIGINT, at TIMESTAMP"
    options: dict[str, Any] = {"path_column": "SRC", "time_column": "at"}
    if name == "b.csv":
        options["header"] = False
    path = landed(tmp_path / "in" / name, {"a.csv": b"i\n1\n", "a.json": b'{"i":1}\n', "b.csv": b"1\n"}[name], at=7)
    table = LakeTable.create(tmp_path / "t", columns, key=["i", "src"])
    table.ingest("job", Files(tmp_path / "in", format=name[2:], options=options)).run()
    at = dt.datetime.fromtimestamp(1_700_000_007, UTC)
    assert LakeTable.open(table.url).to_arrow().to_pylist() == [{"src": str(path), "i": 1, "at": at}]


@pytest.mark.parametrize(
    ("data", "options", "problem"),
    [
        (b"i,s\n1,x\n", {"path_column": "s"}, "records have a column 's' of their own"),
        (b"i\n1\n", {"path_column": "p"}, "no column 'p', which path_column names: add it"),
        (b"i\n1\n", {"time_column": "s"}, "column 's', which time_column names, is STRING; it must be TIMESTAMP"),
    ],
)
def test_columns_for_the_file_must_be_there_and_free(
    data: bytes, options: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    _, (reason,) = taken(tmp_path, "a.csv", data, options=options)
    assert problem in reason


def test_values_that_do_not_fit_are_rescued_but_for_keys(tmp_path: Path) -> None:
    how: dict[str, Any] = {"rescued_column": "rest", "bad_records": "quarantine", "max_bad_records": None}
    columns = "i BIGINT, n INT, l ARRAY<INT>, rest STRING"
    rows, reasons = taken(
        tmp_path / "c",
        "a.csv",
        b"i,n,x\n1,5x,1.50\nz,1,\n3,4,\n4,99999999999,\n",
        columns.replace("l ARRAY<INT>, ", ""),
        **how,
    )
    assert [(row["i"], row["n"], row["rest"]) for row in rows] == [
        (1, None, '{"x":"1.50","n":"5x"}'),
        (3, 4, None),
        (4, None, '{"n":"99999999999"}'),
    ]
    assert reasons == ["column 'i': 'z' does not fit BIGINT"]
    data = b'{"i":1,"n":"5x","l":[1,"k",2.50]}\n{"i":2,"n":7.50,"l":[3]}\n{"i":"k"}\n'
    rows, reasons = taken(tmp_path / "j", "a.json", data, columns, **how)
    assert [(row["i"], row["n"], row["l"], row["rest"]) for row in rows] == [
        (1, None, None, '{"n":"5x","l":[1,"k",2.50]}'),
        (2, None, [3], '{"n":7.50}'),
    ]
    assert len(reasons) == 1


NUMBERS = [
    "1.50",
    "-0",
    "-0.0",
    "1e2",
    "1E400",
    "0.1000000000000000055511151231257827",
    "123456789012345678901234567890",
]


@pytest.mark.parametrize("number", [*NUMBERS, "9007199254740993", "12345678901234567890", '{"a":[1.0,-0,{"b":2.00}]}'])
def test_numbers_are_rescued_as_they_are_written(number: str, tmp_path: Path) -> None:
    data = f'{{"i":1,"x":{number}}}\n{{"i":2,"s":{number}}}\n'.encode()
    rows, reasons = taken(tmp_path, "a.json", data, "i BIGINT, s STRING, rest STRING", rescued_column="rest")
    assert reasons == []
    assert (rows[0]["rest"], rows[1]["s"]) == (f'{{"x":{number}}}', number)


def grown(tmp_path: Path, *files: list[Any], **how: Any) -> tuple[pa.Schema, list[dict[str, Any]], list[str]]:
    table = LakeTable.create(tmp_path / "t", "id BIGINT", key=["id"])
    reasons: list[str] = []
    for number, records in enumerate(files):
        landed(tmp_path / "in" / f"{number}.json", "".join(json.dumps(one) + "\n" for one in records).encode())
        job = table.ingest("job", Files(tmp_path / "in", format="json"), merge_schema=True, **how)
        job.run()
    reasons = [str(file.reason) for file in job.files() if file.reason] + job.rejects()["reason"].to_pylist()
    table = LakeTable.open(table.url)
    return table.schema, table.to_arrow().sort_by("id").to_pylist(), reasons


STRING, LONG, DOUBLE = pa.string(), pa.int64(), pa.float64()


def list_of(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind))


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ([[{"t": "a"}, {"t": "b", "z": 1}]], pa.struct([("t", STRING), ("z", LONG)])),
        ([[[], [1], [2.5]]], list_of(DOUBLE)),
        ([[[]], [["x"]]], list_of(STRING)),
        ([[None, {}, {"a": None}, {"a": [None]}, {"a": [1]}]], pa.struct([("a", list_of(LONG))])),
        ([[[{"a": 1}, {"b": 2.5}], [{"a": 1.5}]]], list_of(pa.struct([("a", DOUBLE), ("b", DOUBLE)]))),
        ([[{"a": {"b": 1}}], [{"a": {"c": [{"d": 1}]}}], [{"a": {"c": [{"e": "x"}]}}]],
         pa.struct([("a", pa.struct([("b", LONG), ("c", list_of(pa.struct([("d", LONG), ("e", STRING)])))]))])),
        ([[1, "x", True]], STRING),
        ([[1], [2]], LONG),
    ],
)  # fmt: skip
def test_types_of_json_join(files: list[list[Any]], kind: pa.DataType, tmp_path: Path) -> None:
    numbered = iter(range(100))
    schema, rows, reasons = grown(tmp_path, *([{"id": next(numbered), "c": one} for one in part] for part in files))
    assert reasons == []
    assert schema.field("c").type == kind
    assert len(rows) == sum(map(len, files))


def test_a_field_with_a_dot_in_its_name_is_a_column(tmp_path: Path) -> None:
    schema, rows, reasons = grown(
        tmp_path, [{"id": 1, "user.name": "ann"}], [{"id": 2, "user.name": "bo", "user": {"n": 1}}]
    )
    assert (schema.names, reasons) == (["id", "user.name", "user"], [])
    assert rows[1] == {"id": 2, "user.name": "bo", "user": {"n": 1}}


@pytest.mark.parametrize("values", [["x", {"a": 1}], [{"a": 1}, "x"], [[1], {"a": 1}], [1, [1]], [{"a": 1}, 5]])
def test_unlike_values_are_set_aside_and_become_no_text(values: list[Any], tmp_path: Path) -> None:
    records = [{"id": number, "c": value} for number, value in enumerate(values)]
    schema, rows, reasons = grown(tmp_path, records, bad_records="quarantine", max_bad_records=None)
    assert [row["id"] for row in rows] == [0]
    assert len(reasons) == 1
    nested = isinstance(values[0], list | dict)
    assert pa.types.is_nested(schema.field("c").type) == nested


def test_unlike_values_in_one_list_are_told(tmp_path: Path) -> None:
    _, rows, (reason,) = grown(tmp_path, [{"id": 1, "c": [1, {"a": 1}]}])
    assert rows == []
    assert "field 'c' holds" in reason
    assert "no column holds both" in reason


def test_peeking_tells_a_header_that_is_torn() -> None:
    data = b'i,"s\n1,a\n'
    with pytest.raises(FileUnreadableError, match="header is not a line of CSV: a quote is not closed"):
        Delimited().peek(pa.BufferReader(data), SourceFile("f", len(data), "t", 0))


@pytest.mark.parametrize(
    ("name", "data", "options", "kinds"),
    [
        (
            "a.csv",
            b'by hand\n# c\ni,s\n1,"a\nb"\n#x,y,z\n',
            {"skip_lines": 1, "comment": "#", "multiline": True},
            [LONG, STRING],
        ),
        ("a.csv", "i|s\r1|2.5\r".encode("utf-16"), {"encoding": "utf-16", "delimiter": "|"}, [LONG, DOUBLE]),
        ("a.csv.zip", zipped(b"i,s\n1,x\n"), {}, [LONG, STRING]),
        ("a.json", b'[{"i": 1,\n"s": "x"}, {"i": 2, "s": "y"}]', {"multiline": True}, [LONG, STRING]),
        ("a.json.xz", lzma.compress(b'{"i": 1, "s": 2.5}'), {}, [LONG, DOUBLE]),
    ],
)
def test_types_are_guessed_from_all_that_is_read(
    name: str, data: bytes, options: dict[str, Any], kinds: list[pa.DataType], tmp_path: Path
) -> None:
    found = SingleFile.found(str(landed(tmp_path / name, data)), options=options)
    assert (found.schema().names, found.schema().types) == (["i", "s"], kinds)


def test_formats_go_to_executors() -> None:
    options = {"timestamp_format": {"s": "epoch_s"}, "multiline": True}
    for name in ("csv", "json"):
        chosen = chosen_format(name, options, columns=("i", "s"))
        assert pickle.loads(pickle.dumps(chosen)) == chosen
