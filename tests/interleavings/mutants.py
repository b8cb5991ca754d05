"""``make mutants``: changes one place of the log, the commits or the writes, and asks whether anything notices.

A mutant is first given to the scheduler: each operation alone, and some orders drawn from the seed. What lives is given
to the tests of its package. What lives then is listed, to be looked at by somebody.
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
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

__all__ = ["Mutant", "mutants_of"]

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("delta", "commits", "write")
VARIABLE = "LAKEMERGE_MUTANT"
_SECONDS = 900
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
        self.function, self.what = _changed(self.tree, number)

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


def _changed(tree: ast.Module, number: int) -> tuple[str, str]:
    """Change the place in the tree. Returns the function around it, and what it was."""
    node, kind = next(place for at, place in enumerate(_places(tree)) if at == number)
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
    return function, f"{kind}: {before}"


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


def _ends_badly(command: Sequence[str], text: str) -> bool:
    environment = {**os.environ, VARIABLE: text, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interleavings.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="how many mutants (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (%(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the number of the first of them (%(default)s)")
    parser.add_argument("--minutes", type=float, default=600, help="end after so many minutes (%(default)s)")
    parser.add_argument("--scheduler-only", action="store_true", help="leave the tests of the package out")
    parser.add_argument("--scheduled", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.scheduled:
        return _scheduled(given.seed)
    paths = sorted(path for package in PACKAGES for path in (ROOT / "lakemerge" / package).rglob("*.py"))
    everything = [(path, number) for path in paths for number in range(mutants_of(path))]
    chosen = random.Random(given.seed).sample(everything, min(given.count, len(everything)))
    counts: Counter[str] = Counter()
    ends = time.monotonic() + 60 * given.minutes
    for path, number in chosen[given.first :]:
        if time.monotonic() > ends:
            break
        mutant = Mutant(path, number)
        text = f"{path.relative_to(ROOT)}#{number}"
        plays = [sys.executable, "-m", "tests.interleavings.mutants", "--scheduled", "--seed", str(given.seed)]
        tests = [sys.executable, "-m", "pytest", "-p", "tests.interleavings.mutants", "-x", "-q",
                 f"tests/unit/{path.relative_to(ROOT / 'lakemerge').parts[0]}"]  # fmt: skip
        how = "found by the scheduler" if _ends_badly(plays, text) else "lives"
        if how == "lives" and not given.scheduler_only and _ends_badly(tests, text):
            how = "found by tests of the package"
        counts[how] += 1
        print(f"{how}: {mutant}", flush=True)  # noqa: T201
    print(f"of {len(everything)} mutants, {sum(counts.values())} were tried (seed {given.seed}): {dict(counts)}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
