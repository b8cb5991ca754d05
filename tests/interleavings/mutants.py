"""``make mutants``: changes one place of the log, the commits or the writes, and asks whether anything notices.

A mutant is first given to the tests that run the changed lines, the shortest first. What lives is given to the
scheduler: each operation alone, and some orders drawn from the seed. What lives then is listed, to be looked at by
somebody. At the end the tests that found something are run without any change: what fails then has found nothing.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.abc
import importlib.machinery
import importlib.util
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType

from tests.interleavings.covering import Covering, measured

__all__ = ["Mutant", "mutants_of"]

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("delta", "commits", "write")
VARIABLE = "LAKEMERGE_MUTANT"
_SECONDS = 40.0
"""Tests for one mutant take at most so long. That is their time without a change."""
_MOST_SECONDS = 900
"""A process that runs for longer hangs. The mutant is found then."""
_ORDERS = 40

_COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


class Mutant:
    """One place of one module, changed."""

    def __init__(self, path: Path, number: int) -> None:
        self.path, self.number = path, number
        self.tree = ast.parse(path.read_text())
        self.function, self.what, self.lines = _changed(self.tree, number)

    def __str__(self) -> str:
        # Numbers of lines would be others after the next change of the file.
        return f"{self.path.relative_to(ROOT)}: {self.function}: {self.what}"


def mutants_of(path: Path) -> int:
    """How many mutants a module has."""
    return sum(1 for _ in _places(ast.parse(path.read_text())))


def _places(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARED:
            yield node, "compare"
        elif isinstance(node, ast.BoolOp):
            yield node, "and-or"
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield node, "not"
        elif isinstance(node, ast.If | ast.IfExp | ast.While) and not isinstance(node.test, ast.Compare | ast.BoolOp):
            if "TYPE_CHECKING" not in ast.dump(node.test):
                yield node, "condition"
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            if isinstance(node.right, ast.Constant) and isinstance(node.right.value, int):
                yield node, "off by one"
        elif isinstance(node, ast.Raise) and node.exc is not None:
            yield node, "raise"
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield node, "call"


def _function_of(tree: ast.AST, wanted: ast.AST) -> str:
    """The class and the function around a place, as in ``Log.commit``. ``the module``, if there is none."""
    kinds = (ast.ClassDef, ast.FunctionDef)
    # What is outside comes before what is inside.
    names = [node.name for node in ast.walk(tree) if isinstance(node, kinds) and wanted in ast.walk(node)]
    return ".".join(names) or "the module"


def _changed(tree: ast.Module, number: int) -> tuple[str, str, range]:
    """Change the place in the tree. Returns the function around it, what it was, and its lines."""
    node, kind = next(place for at, place in enumerate(_places(tree)) if at == number)
    lines = _lines_of(tree, node)
    function = _function_of(tree, node)
    before = ast.unparse(copy.deepcopy(node)).splitlines()[0][:90]
    if isinstance(node, ast.Compare):
        node.ops[0] = _COMPARED[type(node.ops[0])]()
    elif isinstance(node, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif isinstance(node, ast.UnaryOp):
        node.operand, node.op = ast.UnaryOp(ast.Not(), node.operand), ast.Not()
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.BinOp):
        node.right = ast.Constant(node.right.value + 1)  # type: ignore[attr-defined]
    else:
        for parent in ast.walk(tree):
            for body in (getattr(parent, name, None) for name in ("body", "orelse", "finalbody")):
                if isinstance(body, list) and node in body:
                    body[body.index(node)] = ast.Pass()
    ast.fix_missing_locations(tree)
    return function, f"{kind}: {before}", lines


def _lines_of(tree: ast.Module, wanted: ast.AST) -> range:
    """The lines of the innermost statement around a place, without the body of that statement."""
    around = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and wanted in ast.walk(node)]
    last = around[-1]
    body = getattr(last, "body", None)
    ends = body[0].lineno - 1 if isinstance(body, list) else last.end_lineno or last.lineno
    return range(last.lineno, max(ends, last.lineno) + 1)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads the one changed module."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant
        self._name = ".".join(mutant.path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        return importlib.util.spec_from_file_location(name, self._mutant.path, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._mutant.tree, str(self._mutant.path), "exec"), module.__dict__)  # noqa: S102


def installed() -> None:
    """Change the product in this process, as the environment says. ``pytest -p`` calls this by importing."""
    if text := os.environ.get(VARIABLE):
        path, _, number = text.partition("#")
        sys.meta_path.insert(0, _Finder(Mutant(ROOT / path, int(number))))


installed()


def _scheduled(seed: int) -> int:
    """Play orders over the changed product: 1 if something is wrong."""
    from tests.interleavings.explore import KINDS, Explorer
    from tests.interleavings.operations import WORLDS, operations_of
    from tests.interleavings.oracle import Case, Judge
    from tests.interleavings.turns import Schedule

    judge = Judge()
    lots = random.Random(seed)
    for name in ("filled", "logged", "empty", "published"):
        world = WORLDS[name]
        for operation in operations_of(name):
            verdict = judge.play(Case(world, (operation,), Schedule(())))
            if verdict.problems or verdict.outcomes["A"].error is not None:
                return 1
    explorer = Explorer(judge=judge, most_bad=1)
    for kind in ("one operation, one fault", "two operations, one switch"):
        for name in ("filled", "logged"):
            cases = list(KINDS[kind](WORLDS[name], lots.sample(operations_of(name), 5)))
            explorer.explore(kind, lots.sample(cases, min(_ORDERS // 4, len(cases))), seed=seed)
    return int(bool(explorer.coverage.bad))


def _run(command: Sequence[str], text: str) -> tuple[bool, str]:
    """Whether a process ends well over the changed product, and what it printed."""
    environment = {**os.environ, VARIABLE: text, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_MOST_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return False, "it hangs"
    return done.returncode == 0, done.stdout


def _pytest(tests: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "pytest", "-p", "tests.interleavings.mutants", "-p", "no:cacheprovider", "-q", *tests]


def _verdict(mutant: Mutant, covering: Covering, *, seed: int) -> tuple[str, str]:
    """How the mutant was found, and by which test, if any."""
    text = f"{mutant.path.relative_to(ROOT)}#{mutant.number}"
    if tests := covering.tests_of(mutant.path, mutant.lines, seconds=_SECONDS):
        well, printed = _run([*_pytest(tests), "-x"], text)
        if not well:
            failed = re.search(r"^(?:FAILED|ERROR) (\S+::.+?)(?: - .*)?$", printed, re.MULTILINE)
            return "found by a test", failed[1] if failed else printed[-200:]
    plays = [sys.executable, "-m", "tests.interleavings.mutants", "--scheduled", "--seed", str(seed)]
    if not _run(plays, text)[0]:
        return "found by the scheduler", ""
    return "lives" if tests else "lives, and no test runs it", ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interleavings.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="how many mutants (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (%(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the number of the first of them (%(default)s)")
    parser.add_argument("--minutes", type=float, default=600, help="begin none after so many minutes (%(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (%(default)s)")
    parser.add_argument("--measured", type=Path, help="a folder for which tests run which lines, to be used again")
    parser.add_argument("--again", type=Path, help="a file with what a run printed: those that lived, of these alone")
    parser.add_argument("--scheduled", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.scheduled:
        return _scheduled(given.seed)
    paths = sorted(path for package in PACKAGES for path in (ROOT / "lakemerge" / package).rglob("*.py"))
    everything = [(path, number) for path in paths for number in range(mutants_of(path))]
    chosen = random.Random(given.seed).sample(everything, min(given.count, len(everything)))
    chosen = chosen[given.first :]
    if given.again:
        lived = {line.partition(": ")[2] for line in given.again.read_text().splitlines() if line.startswith("lives")}
        chosen = [place for place in chosen if str(Mutant(*place)) in lived]
    ends = time.monotonic() + 60 * given.minutes
    with tempfile.TemporaryDirectory() as scratch:
        covering = measured(given.measured or Path(scratch), PACKAGES, jobs=given.jobs)
    found: dict[str, list[str]] = {}
    with ThreadPoolExecutor(given.jobs) as pool:
        tried = partial(_tried, covering=covering, seed=given.seed, ends=ends)
        for mutant, how, test in filter(None, pool.map(tried, chosen)):
            found.setdefault(how, []).append(test)
            print(f"{how}: {mutant}{f' ({test})' if test else ''}", flush=True)  # noqa: T201
    counts = {how: len(tests) for how, tests in found.items()}
    print(f"of {len(everything)} mutants, {sum(counts.values())} were tried (seed {given.seed}): {counts}")  # noqa: T201
    return _failing_anyway({test for test in found.get("found by a test", ()) if "::" in test})


def _tried(place: tuple[Path, int], *, covering: Covering, seed: int, ends: float) -> tuple[Mutant, str, str] | None:
    if time.monotonic() > ends:
        return None
    mutant = Mutant(*place)
    return mutant, *_verdict(mutant, covering, seed=seed)


def _failing_anyway(tests: set[str]) -> int:
    """Run the tests without a change. 1 if any fails: then it has found nothing."""
    if not tests:
        return 0
    well, printed = _run(_pytest(sorted(tests)), "")
    print("without a change they all pass" if well else f"without a change, too, some fail:\n{printed[-5000:]}")  # noqa: T201
    return int(not well)


if __name__ == "__main__":
    sys.exit(main())
