"""What is said of Spark's Python workers that have other packages than the program."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the check is part of the Spark side")

from lakemerge.spark.installed import OLDEST_PYSPARK
from lakemerge.spark.sessions import OLDEST_PYARROW, WORKERS_NEED, unlike_here, why_unplanned

OWN = version("lakemerge")


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        ({"lakemerge": OWN, "pyarrow": "19.0.0"}, None),
        ({"pyarrow": "26.1"}, None),
        (
            {"lakemerge": "0.0.9", "pyarrow": "19.0"},
            f"they have lakemerge 0.0.9, and this program has {OWN} (in p, 3.11)",
        ),
        ({"lakemerge": OWN, "pyarrow": "18.9"}, "they have pyarrow 18.9, and 19 is the oldest that does (in p, 3.11)"),
        ({"missing": "numpy, orjson", "failed": "No module named 'numpy'"}, "they lack numpy, orjson (in p, 3.11)"),
        ({"missing": "", "failed": "numpy is broken"}, "numpy is broken (in p, 3.11)"),
    ],
)
def test_workers_that_differ(told: dict[str, str], problem: str | None) -> None:
    assert unlike_here({"python": "p, 3.11", **told}) == problem


def test_what_workers_need_is_what_the_package_needs() -> None:
    project = tomllib.loads((Path(__file__).resolve().parents[3] / "pyproject.toml").read_text())["project"]
    [pyarrow] = [line for line in project["dependencies"] if line.startswith("pyarrow")]
    assert pyarrow.startswith(f"pyarrow>={OLDEST_PYARROW}.")
    dependencies = {re.split("[<>=]", line)[0] for line in project["dependencies"]}
    assert {"lakemerge", "mergers", "compaction"} | dependencies == set(WORKERS_NEED)
    [spark] = [line for line in project["optional-dependencies"]["spark"] if line.startswith("pyspark")]
    assert spark.startswith(f"pyspark>={'.'.join(map(str, OLDEST_PYSPARK))}.")


def test_a_driver_that_lacks_the_workers_python() -> None:
    """Where a job sends an environment, their Python is a path that executors have."""

    def why(python: str) -> str | None:
        session: Any = SimpleNamespace(_jsparkSession=object(), sparkContext=SimpleNamespace(pythonExec=python))
        return why_unplanned(session)

    assert "the driver has no ./packed/bin/python" in str(why("./packed/bin/python"))
    assert why(sys.executable) is None
    assert why("sh") is None, "found on the path"
    client: Any = SimpleNamespace()
    assert why_unplanned(client) is None, "a server plans for a client of Spark Connect"
