"""``lakemerge explain``, ``lineage``, ``what-if`` and ``replay``."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import orjson
import pyarrow as pa
import pytest

from lakemerge import LakeTable
from lakemerge.cli import main
from tests.unit.faults import create, frame, rows_of

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def path(tmp_path: Path) -> str:
    table = create(tmp_path / "t", schema="k BIGINT, d DATE, o BIGINT, v STRING", key=["k", "d"])
    names = ["k", "d", "o", "v"]
    day = dt.date(2026, 1, 2)
    for o, v in [(1, "a"), (3, "b"), (2, "c")]:
        table.upsert(frame([(7, day, o, v)], names, d=pa.date32()))
    return str(tmp_path / "t")


def test_explain(path: str, capsys: Captured) -> None:
    assert main(["explain", path, "k=7", "D=2026-01-02"]) == 0
    out = capsys.readouterr().out
    assert "ignored: o 2 is older than 3 of version 2" in out
    assert main(["explain", path, "k=7", "d=2026-01-02", "--since", "2", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert (orjson.loads(line)["version"], orjson.loads(line)["verdict"]) == (3, "ignored")


@pytest.mark.parametrize(
    ("key", "says"),
    [
        (["k=x", "d=2026-01-02"], "'x' is not a value of key column 'k', which is BIGINT"),
        (["k"], "'k' is not NAME=VALUE, such as k=7"),
        (["k=7"], "missing: d"),
        (["z=7"], "the table has no column 'z'; its key is k, d"),
    ],
)
def test_keys_that_are_none(path: str, key: list[str], says: str, capsys: Captured) -> None:
    assert main(["explain", path, *key]) == 2
    assert says in capsys.readouterr().err


def test_lineage(path: str, capsys: Captured) -> None:
    assert main(["lineage", path, "--version", "2"]) == 0
    out = capsys.readouterr().out
    assert out.count("CREATE") == 2
    assert main(["lineage", path, "k=7", "d=2026-01-02", "--dot"]) == 0
    assert capsys.readouterr().out.startswith("digraph lineage {")


def test_what_if(path: str, capsys: Captured) -> None:
    assert main(["what-if", path, "--merger", "commit-time", "--where", "k = 7"]) == 0
    captured = capsys.readouterr()
    assert [line.split() for line in captured.out.splitlines()] == [["k", "d", "o", "v"], ["7", "2026-01-02", "2", "c"]]
    assert "stay as they are" in captured.err
    assert main(["what-if", path, "--options", "[1]"]) == 2
    assert "JSON object" in capsys.readouterr().err


def test_what_if_shows_what_would_differ(tmp_path: Path, capsys: Captured) -> None:
    """For CI: the exit code says whether a row would differ."""
    ddl, options = "id BIGINT, n BIGINT, at BIGINT", {"columns": {"n": "old.n + new.n"}}
    table = LakeTable.create(tmp_path / "rules", ddl, key=["id"], ordering=["at"], merger="expression", options=options)
    table.upsert(pa.table({"id": [1, 2], "n": [5, 5], "at": [1, 1]}))
    table.upsert(pa.table({"id": [1, 3], "n": [2, 2], "at": [2, 2]}))
    where, same = str(tmp_path / "rules"), '{"columns": {"n": "coalesce(old.n + new.n, old.n, new.n)"}}'
    assert main(["what-if", where, "--since", "0", "--diff", "--options", same]) == 0
    assert "no row would differ" in capsys.readouterr().out
    for since in ("0", "7d"):
        assert main(["what-if", where, "--since", since, "--diff", "--merger", "event-time"]) == 1
        out = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert out[:3] == [["_row_kind", "id", "n", "at"], ["-U", "1", "7", "2"], ["+U", "1", "2", "2"]]
        assert "1 would differ (n in 1)" in " ".join(out[-1])
    removing = '{"columns": {"n": "old.n + new.n"}, "remove_when": "new.n = 2"}'
    assert main(["what-if", where, "--since", "0", "--diff", "--json", "--options", removing]) == 1
    rows = [orjson.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["_row_kind"], row["id"]) for row in rows] == [("-D", 1), ("-D", 3)]
    assert main(["what-if", where, "--since", "soon", "--diff"]) == 2
    assert "is not a duration" in capsys.readouterr().err


def test_replay(path: str, tmp_path: Path, capsys: Captured) -> None:
    other = str(tmp_path / "other")
    assert main(["replay", path, other, "--until", "2"]) == 0
    assert main(["replay", path, other]) == 0
    assert rows_of(LakeTable.open(other).to_arrow()) == rows_of(LakeTable.open(path).to_arrow())
    assert "1 records in 1 commits" in capsys.readouterr().out.splitlines()[-2]
    assert main(["replay", path, other, "--merger", "commit-time"]) == 2
