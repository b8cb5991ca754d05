"""Which tests run a line of the product: measured once, so that a changed line is given to those tests alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

from coverage import CoverageData

__all__ = ["Covering", "measured"]

ROOT = Path(__file__).resolve().parents[2]
_ROOMS = "commits compaction convert delta feed format layout provenance schema storage table transactions write"
TESTS = (*(f"tests/unit/{room}" for room in _ROOMS.split()), "tests/interleavings/test_schedules.py")
_LEFT_OUT = "not serial and not long and not bench and not cluster"


class Covering:
    """The tests of each line, and how long each of them took."""

    def __init__(self, data: CoverageData, seconds: Mapping[str, float]) -> None:
        """
        :param data: the lines that ran, by the context of pytest-cov: ``ID|run``, or ``setup`` or ``teardown``.
        :param seconds: of the tests that passed, by their ids. A test that is not in it is chosen for no line.
        """
        self._data, self._seconds = data, seconds

    def tests_of(self, path: Path, lines: Collection[int], *, seconds: float) -> Sequence[str]:
        """The ids of tests that run one of the lines, the shortest first, as many as end within ``seconds``. At least
        one, if there is any."""
        by_line = self._data.contexts_by_lineno(str(path))
        found = {context.rpartition("|")[0] for line in lines for context in by_line.get(line, ())}
        chosen: list[str] = []
        for name in sorted(found & self._seconds.keys(), key=lambda name: (self._seconds[name], name)):
            seconds -= self._seconds[name]
            if chosen and seconds < 0:
                break
            chosen.append(name)
        return chosen


def measured(folder: Path, packages: Sequence[str], *, jobs: int) -> Covering:
    """Run the tests over the packages, unless ``folder`` has their figures already.

    :param packages: of ``lakemerge``.
    :raises RuntimeError: no test ran.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines, times, settings = folder / "lines", folder / "times.xml", folder / "settings"
    if not times.exists():
        names = "\n  ".join(f"lakemerge.{package}" for package in packages)
        settings.write_text(f"[run]\nsource_pkgs =\n  {names}\ndata_file = {lines}\n")
        subprocess.run(
            [sys.executable, "-m", "pytest", *TESTS, "-n", str(jobs), "-m", _LEFT_OUT, "--one-in", "4", "-q",
             "--cov", f"--cov-config={settings}", "--cov-context=test", "--cov-report=", f"--junitxml={times}"],
            cwd=ROOT, check=False,
        )  # fmt: skip
    data = CoverageData(str(lines))
    data.read()
    seconds = {}
    for case in ElementTree.parse(times).getroot().iter("testcase"):  # noqa: S314 - pytest wrote it
        if not {"failure", "error", "skipped"} & {child.tag for child in case}:
            name = f"{case.attrib['classname'].replace('.', '/')}.py::{case.attrib['name']}"
            seconds[name] = float(case.attrib["time"])
    if not seconds:
        raise RuntimeError(f"no test passed: {times} says why")
    return Covering(data, seconds)
