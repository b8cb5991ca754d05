"""Random histories with transactions, under every built-in merger and users' own: the rows and the feed are those of
the plain-Python model after every step, whatever was compacted.

``LAKEMERGE_HISTORIES`` sets how many there are for each setting (143 in ``make test-deep``, which makes 10,000).
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from lakemerge import LakeTable
from tests.conformance.arrow_engine import ArrowEngine, ArrowHandle
from tests.conformance.model_functions import function_of
from tests.conformance.runner import COMPACTIONS, Filter, TableCase
from tests.conformance.values import assert_rows, multiset, rows_of
from tests.model import ModelTable
from tests.property.effort import examples, some
from tests.property.histories import (
    Action,
    AddColumn,
    Compact,
    History,
    Probe,
    Reopen,
    Transact,
    Write,
    check_history,
)
from tests.property.merger_configurations import CONFIGURATIONS

_MOST: Final = 8


@dataclass(frozen=True)
class Setting:
    """A table, and what is written to it."""

    name: str
    table: TableCase
    kinds: tuple[str, ...]
    values: Mapping[str, Sequence[Any]]
    """The values that each column may have."""
    full: bool = False
    """Whether all records and rows have all columns."""
    together: tuple[tuple[str, ...], ...] = ()
    """Columns that a record carries all, or none of."""

    def __str__(self) -> str:
        return self.name


_SMALL: Mapping[str, Sequence[Any]] = {
    "INT": (None, 0, 1, 2, -1),
    "BIGINT": (None, 1, 2, 3, 4),
    "DECIMAL(5,2)": (None, *map(Decimal, ("0.00", "1.00", "-1.00"))),
    "DECIMAL(4,0)": (None, *map(Decimal, ("1", "-1"))),
    "DECIMAL(38,1)": (None, *map(Decimal, ("0.5", "-0.5"))),
}
"""Values of which no total leaves its column."""
_USERS: Mapping[str, tuple[str, tuple[str, ...], tuple[str, ...], Mapping[str, Sequence[Any]]]] = {
    "custom:capped-sum": ("id INT, counter INT, ts INT", ("ts",), ("+U", "+U", "-D"), {"counter": (0, 1)}),
    "custom:even-key-drops": ("id INT, w STRING, ts INT", ("ts",), ("+U", "+U", "-D"), {}),
    "custom:strictly-greater": ("id INT, w STRING, ts INT", ("ts",), ("+U", "+U", "-D", "-U"), {}),
    "custom:order-state": ("id INT, state STRING", (), ("+U", "+I", "-D"), {"state": ("created", "paid", "cancelled")}),
    "custom:highest": ("id INT, v INT, w STRING", (), ("+U", "+I"), {"v": (None, 0, 1, 2, 3)}),
}


def _settings() -> list[Setting]:
    found = []
    for each in CONFIGURATIONS:
        types = dict(part.strip().split(" ", maxsplit=1) for part in each.ddl.split(", "))
        values = {n: each.values.get(n) or _SMALL.get(types[n]) or each.values_of(n) for n in types}
        groups = tuple(tuple(name.split(",")) for name in each.options.get("sequence_groups", {}))
        table = TableCase(each.ddl, ("k",), each.ordering, each.merger, each.options)
        found.append(Setting(each.name, table, each.kinds, {**values, "k": (1, 2, 3)}, together=groups))
    for name, (ddl, ordering, kinds, more) in _USERS.items():
        own = {"id": (1, 2, 3), "ts": (1, 2, 3, 4, 5), "w": (None, "a", "b"), **more}
        found.append(Setting(name, TableCase(ddl, ("id",), ordering, name), kinds, own, full=True))
    return found


SETTINGS: Final = _settings()


@dataclass
class Drawing:
    """Draws one history."""

    setting: Setting
    random: random.Random
    added: bool = field(default=False)

    def history(self) -> History:
        steps = tuple((self._action(), self._probe()) for _ in range(self.random.randint(2, _MOST)))
        return History(self.setting.table, self.random.choice([1, 4]), self.random.random() < 0.3, steps)

    @property
    def _names(self) -> list[str]:
        return [*self.setting.table.schema.names, *(["x0"] if self.added else [])]

    def _values(self, name: str) -> Sequence[Any]:
        return _SMALL["INT"] if name == "x0" else self.setting.values[name]

    def _row(self, names: Sequence[str]) -> tuple[Any, ...]:
        return tuple(self.random.choice(self._values(name)) for name in names)

    def _state(self, names: Sequence[str]) -> tuple[Any, ...]:
        """Values of a row. Those of functions are ones that a fold may leave, such as lists of distinct elements."""
        functions = self.setting.table.options.get("aggregates", {})
        schema, row = self.setting.table.schema, dict(zip(names, self._row(names), strict=True))
        for name in functions.keys() & row.keys():
            function = function_of(functions[name], schema.field(name).type)
            row[name] = function.fold(None, row[name], newer=True, first=True)
        return tuple(row.values())

    def _action(self) -> Action:
        what = self.random.choice(["write"] * 4 + ["transact"] * 4 + ["compact"] * 3 + ["reopen", "add"])
        match what:
            case "write":
                return self._write()
            case "transact":
                return self._transact()
            case "compact":
                return Compact(self.random.choice(COMPACTIONS))
            case "add" if not self.added and not self.setting.full:
                self.added = True
                return AddColumn("x0 INT")
            case _:
                return Reopen()

    def _columns(self) -> list[str]:
        """Those of a record."""
        if self.setting.full or self.random.random() < 0.4:
            return self._names
        table = self.setting.table
        chosen = {*table.key, *table.ordering, *(n for n in self._names if self.random.random() < 0.5)}
        for group in self.setting.together:
            chosen |= set(group) if chosen & set(group) else set()
        return [name for name in self._names if name in chosen]

    def _write(self) -> Write:
        table = self.setting.table
        kinds, names = self.setting.kinds, self._columns()
        if "-D" in kinds and table.ordering and self.random.random() < 0.1:
            kinds, names = ("-D",), list(table.key)
        rows = tuple(self._row(names) for _ in range(self.random.randint(1, 5)))
        return Write(
            tuple(names), rows, tuple(self.random.choice(kinds) for _ in rows), False, self.random.random() < 0.3
        )

    def _transact(self) -> Transact:
        how: Any = self.random.choice(["update", "update", "delete", "merge update", "merge delete"])
        key = self.setting.table.key
        others = [name for name in self._names if name not in key]
        chosen = (
            others
            if self.setting.full and how != "update"
            else self.random.sample(others, self.random.randint(1, len(others)))
        )
        where = self._filter(key[0]) if self.random.random() < 0.8 else None
        if how == "update":
            return Transact(how, where, tuple(chosen), (self._state(chosen),))
        keys = self.random.sample(list(self.setting.values[key[0]]), self.random.randint(0, 3))
        return Transact(how, where, (*key, *chosen), tuple((k, *self._state(chosen)) for k in keys))

    def _filter(self, name: str) -> Filter:
        how = self.random.choice(["=", "!=", "<", ">="])
        return Filter(name, how, self.random.choice([v for v in self._values(name) if v is not None]))

    def _probe(self) -> Probe:
        names = self.random.sample(self._names, self.random.randint(1, len(self._names)))
        where = self._filter(self.setting.table.key[0]) if self.random.random() < 0.3 else None
        return Probe(tuple(names), where, self.random.choice(["sql", "expression"]))


def drawn(setting: Setting, seed: int) -> History:
    return Drawing(setting, random.Random(f"{setting.name}/{seed}")).history()


def check(setting: Setting, seed: int) -> None:
    """In every fifth history all versions are read again, and the feed."""
    again = seed % 5 == 0
    with tempfile.TemporaryDirectory() as folder:
        try:
            actual, expected, numbers = check_history(drawn(setting, seed), ArrowEngine(Path(folder)), again=again)
            assert isinstance(actual, ArrowHandle)
            if again:
                check_feed(actual.table, expected.model, numbers)
        except Exception as error:
            error.add_note(f"the history of seed {seed}")
            raise


def check_feed(table: LakeTable, model: ModelTable, numbers: Mapping[int, int]) -> None:
    """The changes of each commit lead from rows to rows, and name none that stays as it is."""
    key, names, shape = (
        table.opened.view.config.key,
        table.opened.view.config.schema.names,
        table.opened.view.config.schema,
    )

    def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
        """Whatever the order in which a map's entries are stored."""
        first, second = (multiset([tuple(row.values())], shape.types) for row in (one, other))
        return first == second

    copy: dict[Any, Any] = {}
    changes: dict[int, list[dict[str, Any]]] = {}
    for change in table.changes(since=0).read_all().to_pylist():
        changes.setdefault(change["_commit_version"], []).append(change)
    before: dict[Any, Any] = {}
    for version in range(1, table.version + 1):
        for change in changes.get(version, []):
            row = {name: change[name] for name in names}
            at = tuple(row[name] for name in key)
            match change["_row_kind"]:
                case "+I":
                    assert at not in copy
                    copy[at] = row
                case "+U":
                    assert not same(row, before.pop(at)), version
                    copy[at] = row
                case "-U":
                    assert same(copy[at], row), version
                    before[at] = row
                case _:
                    assert same(copy.pop(at), row), version
        if version in numbers:
            schema = pa.schema([pa.field(f.name, f.type) for f in model.schema])
            rows = [{name: row.get(name) for name in names} for row in model.rows(numbers[version])]
            expected = pa.Table.from_pylist(rows, schema=schema)
            found = pa.Table.from_pylist(list(copy.values()), schema=schema)
            assert_rows(found, rows_of(expected), schema, f"the feed up to version {version}")


ALL: Final = 143
"""How many histories each setting has, so that there are 10,000."""
EACH: Final = examples(ALL if examples(5) == 5 else 5, variable="LAKEMERGE_HISTORIES")


@pytest.mark.parametrize("setting", some(SETTINGS), ids=str)
def test_histories_with_transactions_are_the_model(setting: Setting) -> None:
    for seed in range(EACH):
        check(setting, seed)
