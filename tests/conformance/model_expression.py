"""``expression`` in plain Python: every rule's text has a function of two rows beside it, written by hand."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from tests.model import Merger, Misconfigured, Record, Row, Spec, State, Tombstone, Unreadable, has_equal, rank

__all__ = ["RULES", "Expression", "Facts"]

UNKNOWN = object()
"""The value of a column whose rule failed."""
LOST = "a condition failed"
"""The name under which a row says that it is not known."""


class Failed(Exception):
    """A rule fails on a record."""


class Facts:
    """What a rule sees: ``o`` and ``n`` are the row before and the record."""

    def __init__(self, o: Row, n: Row, carried: Mapping[str, Any], *, first: bool) -> None:
        self.o, self.n, self._carried, self.first = o, n, carried, first

    def is_set(self, column: str) -> bool:
        return column in self._carried


def whole(value: Any, bits: int) -> Any:
    if value is not None and not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        raise Failed
    return value


def add(one: Any, other: Any, bits: int = 64) -> Any:
    return None if one is None or other is None else whole(one + other, bits)


def minus(one: Any, other: Any, bits: int = 64) -> Any:
    return None if one is None or other is None else whole(one - other, bits)


def plus(one: Any, other: Any) -> Any:
    """Of floats."""
    return None if one is None or other is None else one + other


def coalesce(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def greatest(*values: Any) -> Any:
    known = [value for value in values if value is not None]
    return max(known, key=rank) if known else None


def least(*values: Any) -> Any:
    known = [value for value in values if value is not None]
    return min(known, key=rank) if known else None


def at_least(one: Any, other: Any) -> bool:
    return one is not None and other is not None and rank(one) >= rank(other)


def above(one: Any, other: Any) -> bool:
    return one is not None and other is not None and rank(one) > rank(other)


def below(one: Any, other: Any) -> Any:
    return None if one is None or other is None else one < other


def union(one: Any, other: Any) -> Any:
    if one is None or other is None:
        return None
    return list(dict.fromkeys([*one, *other]))


def quotient(one: Any, other: Any) -> Any:
    """``div`` of integers."""
    if one is None or other is None:
        return None
    if other == 0:
        raise Failed
    size = abs(one) // abs(other)
    return whole(-size if (one < 0) != (other < 0) else size, 64)


Rule = Callable[[Facts], Any]

RULES: dict[str, Rule] = {
    "new.a": lambda f: f.n["a"],
    "old.a": lambda f: f.o["a"],
    "old.b": lambda f: f.o["b"],
    "old.n + 1": lambda f: add(f.o["n"], 1),
    "old.i + new.i": lambda f: add(f.o["i"], f.n["i"], 32),
    "old.n + new.n": lambda f: add(f.o["n"], f.n["n"]),
    "old.n - new.n": lambda f: minus(f.o["n"], f.n["n"]),
    "old.n + new.i": lambda f: add(f.o["n"], f.n["i"]),
    "old.f + new.f": lambda f: plus(f.o["f"], f.n["f"]),
    "coalesce(old.n, 0) + new.n": lambda f: add(coalesce(f.o["n"], 0), f.n["n"]),
    "coalesce(old.f, 0) + new.f": lambda f: plus(coalesce(f.o["f"], 0), f.n["f"]),
    "coalesce(old.n + new.n, old.n, new.n)": lambda f: coalesce(add(f.o["n"], f.n["n"]), f.o["n"], f.n["n"]),
    "old.n + coalesce(new.i, 0)": lambda f: add(f.o["n"], coalesce(f.n["i"], 0)),
    "old.n + (new.i - old.i)": lambda f: add(f.o["n"], minus(f.n["i"], f.o["i"], 32)),
    "coalesce(new.s, old.s)": lambda f: coalesce(f.n["s"], f.o["s"]),
    "coalesce(old.s, new.s)": lambda f: coalesce(f.o["s"], f.n["s"]),
    "coalesce(new.v, old.v)": lambda f: coalesce(f.n["v"], f.o["v"]),
    "greatest(old.f, new.f)": lambda f: greatest(f.o["f"], f.n["f"]),
    "greatest(old.r, new.r)": lambda f: greatest(f.o["r"], f.n["r"]),
    "least(new.s, old.s)": lambda f: least(f.n["s"], f.o["s"]),
    "CASE WHEN new.r >= old.r THEN new.r ELSE old.r END": lambda f: (
        f.n["r"] if at_least(f.n["r"], f.o["r"]) else f.o["r"]
    ),
    "IF(old.r > new.r, new.r, old.r)": lambda f: f.n["r"] if above(f.o["r"], f.n["r"]) else f.o["r"],
    "CASE WHEN is_set(new.s) THEN new.s WHEN is_first() THEN 'first' ELSE 'unset' END": lambda f: (
        f.n["s"] if f.is_set("s") else "first" if f.first else "unset"
    ),
    "CASE WHEN new.r = 1 THEN 'one' ELSE old.s END": lambda f: "one" if f.n["r"] == 1 else f.o["s"],
    "array_union(old.l, new.l)": lambda f: union(f.o["l"], f.n["l"]),
    "old.n DIV new.n": lambda f: quotient(f.o["n"], f.n["n"]),
    "new.n DIV new.i": lambda f: quotient(f.n["n"], f.n["i"]),
    "old.q + 1": lambda f: add(f.o["q"], 1),
    "upper(new.s)": lambda f: None if f.n["s"] is None else f.n["s"].upper(),
    "1": lambda f: 1,
    "new.s = 'a'": lambda f: None if f.n["s"] is None else f.n["s"] == "a",
    "new.s = 'b' AND NOT is_first()": lambda f: f.n["s"] == "b" and not f.first,
    "new.o < old.o": lambda f: None if f.n["o"] is None or f.o["o"] is None else f.n["o"] < f.o["o"],
    "new.r < old.r": lambda f: None if f.n["r"] is None or f.o["r"] is None else f.n["r"] < f.o["r"],
    "old.n > 3": lambda f: None if f.o["n"] is None else f.o["n"] > 3,
    # those of the conformance cases
    "new.n": lambda f: f.n["n"],
    "old.n + new.v": lambda f: add(f.o["n"], f.n["v"]),
    "new.at < old.at": lambda f: below(f.n["at"], f.o["at"]),
    "new.n < 0": lambda f: below(f.n["n"], 0),
    "new.a < 0": lambda f: below(f.n["a"], 0),
    "new.a = 0": lambda f: None if f.n["a"] is None else f.n["a"] == 0,
    "new.v < old.v": lambda f: below(f.n["v"], f.o["v"]),
    "new.n > 100": lambda f: below(100, f.n["n"]),
    "old.n > 5": lambda f: below(5, f.o["n"]),
    "new.s = 'purged'": lambda f: None if f.n["s"] is None else f.n["s"] == "purged",
    "new.s = 'purged' AND NOT is_first()": lambda f: f.n["s"] == "purged" and not f.first,
    "coalesce(new.s, 'none')": lambda f: coalesce(f.n["s"], "none"),
    "'new'": lambda f: "new",
    "old.seen + 1": lambda f: add(f.o["seen"], 1, 32),
    "new.price * new.pieces": lambda f: None if None in (f.n["price"], f.n["pieces"]) else f.n["price"] * f.n["pieces"],
    "CASE WHEN NOT is_set(new.s) THEN 'unset' WHEN new.s IS NULL THEN 'null' ELSE new.s END": lambda f: (
        "unset" if not f.is_set("s") else coalesce(f.n["s"], "null")
    ),
    "greatest(old.rank, new.rank)": lambda f: greatest(f.o["rank"], f.n["rank"]),
    "CASE WHEN new.rank >= old.rank THEN new.state ELSE old.state END": lambda f: (
        f.n["state"] if at_least(f.n["rank"], f.o["rank"]) else f.o["state"]
    ),
    "new.a DIV new.b": lambda f: quotient(f.n["a"], f.n["b"]),
    "old.d + new.d / 3": lambda f: (f.o["d"] + (f.n["d"] / 3).quantize(Decimal("0.000001"), ROUND_HALF_UP)).quantize(
        Decimal("0.01"), ROUND_HALF_UP
    ),
    "greatest(old.t, new.day)": lambda f: max(f.o["t"], dt.datetime.combine(f.n["day"], dt.time(), dt.UTC)),
    "greatest(old.s, new.s)": lambda f: greatest(f.o["s"], f.n["s"]),
    "hour(new.t)": lambda f: f.n["t"].astimezone(dt.UTC).hour,
    "array_except(old.m, new.m)": lambda f: (
        None if None in (f.o["m"], f.n["m"]) else [v for v in dict.fromkeys(f.o["m"]) if v not in f.n["m"]]
    ),
    "array_union(old.m, new.m)": lambda f: union(f.o["m"], f.n["m"]),
    "old.a + new.a": lambda f: add(f.o["a"], f.n["a"]),
    "coalesce(old.b, 0) + new.b": lambda f: add(coalesce(f.o["b"], 0), f.n["b"]),
    "coalesce(old.c + new.c, old.c, new.c)": lambda f: coalesce(add(f.o["c"], f.n["c"]), f.o["c"], f.n["c"]),
    # those of the golden table
    "CASE WHEN new.r >= old.r THEN new.s ELSE old.s END": lambda f: (
        f.n["s"] if at_least(f.n["r"], f.o["r"]) else f.o["s"]
    ),
    "IF(new.day > DATE '2024-01-01' + INTERVAL 1 MONTH, new.day, old.day)": lambda f: (
        f.n["day"] if below(dt.date(2024, 2, 1), f.n["day"]) else f.o["day"]
    ),
    "coalesce(upper(trim(new.s)), 'none')": lambda f: "none" if f.n["s"] is None else f.n["s"].strip(" ").upper(),
    "new.n < 0 OR new.n % 7 = 6": lambda f: None if f.n["n"] is None else f.n["n"] < 0 or f.n["n"] % 7 == 6,
    "new.s IN ('gone', 'purged') AND NOT is_first() OR is_set(new.l) AND size(new.l) > 3": lambda f: (
        (f.n["s"] in ("gone", "purged") and not f.first)
        or (f.is_set("l") and f.n["l"] is not None and len(f.n["l"]) > 3)
    ),
    "new.n DIV new.i = 1": lambda f: (
        None if quotient(f.n["n"], f.n["i"]) is None else quotient(f.n["n"], f.n["i"]) == 1
    ),
}
"""Text -> what it means. Arithmetic is in the type that Spark gives it."""


def _reads(text: str, side: str) -> set[str]:
    asked = re.findall(r"is_set\(new\.(\w+)\)", text)
    return set(re.findall(rf"\b{side}\.(\w+)", re.sub(r"is_set\([^)]*\)", "", text))) | (
        set(asked) if side == "asked" else set()
    )


class Expression(Merger):
    """Section 5, ``expression``."""

    options = frozenset({"columns", "default", "first", "ignore_when", "remove_when"})

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        given = spec.options
        self.columns, self.first = given.get("columns", {}), given.get("first", {})
        self.default = given.get("default") or ("newer" if spec.ordering else "last")
        texts = [*self.columns.values(), *self.first.values()]
        texts += [given[name] for name in ("ignore_when", "remove_when") if given.get(name)]
        if unknown := [text for text in texts if text not in RULES]:
            raise Misconfigured(f"no such rule {unknown}")
        if any(name in (*spec.key, *spec.ordering) for name in (*self.columns, *self.first)):
            raise Misconfigured("a rule for a key or ordering column")
        if self.default == "newer" and not spec.ordering:
            raise Misconfigured("newer without ordering")
        for text in self.first.values():
            if _reads(text, "old"):
                raise Misconfigured("first reads old")

    def deletes(self, record: Record) -> bool:
        text = self.spec.options.get("remove_when")
        if record.kind == "-D" or text is None or record.kind == "-U":
            return record.kind == "-D"
        if _reads(text, "old") or "is_first" in text or not _reads(text, "new") <= record.values.keys():
            return False
        try:
            return self.ask("remove_when", {}, record, first=False) is True
        except Failed:
            return False

    def apply(self, state: State, record: Record) -> State:
        if record.kind == "-U":
            return state
        ordering = self.ordering(record) if self.spec.ordering else None
        if record.kind == "-D":
            if ordering is None:
                return None
            return state if state is not None and ordering < self.stored(state) else Tombstone(ordering)
        if isinstance(state, Tombstone) and ordering is not None and ordering < state.ordering:
            return state
        if isinstance(state, dict):
            return self.changed(state, record, ordering)
        try:
            removes = self.ask("remove_when", {}, record, first=True) is True
        except Failed:
            return {**dict(record.values), LOST: True}
        if removes:
            return None if ordering is None else Tombstone(ordering)
        row: Row = {name: record.values.get(name) for name in self.spec.schema.names}
        facts = Facts(dict.fromkeys(row), row, record.values, first=True)
        made = {name: self.value(text, facts, name) for name, text in self.first.items()}
        return row | made

    def changed(self, row: Row, record: Record, ordering: Any) -> State:
        newer = ordering is None or ordering >= self.stored(row)
        ahead = {name: record.values[name] for name in self.spec.ordering} if newer else {}
        if LOST in row:
            return row | ahead
        try:
            if self.ask("ignore_when", row, record, first=False) is True:
                return row
            if self.ask("remove_when", row, record, first=False) is True:
                return Tombstone(max(ordering, self.stored(row))) if ordering is not None else None
        except Failed:
            return {**row, **ahead, LOST: True}
        filled = {name: record.values.get(name, row.get(name)) for name in self.spec.schema.names}
        facts = Facts(row, filled, record.values, first=False)
        after = dict(row) | ahead
        for name in self.spec.schema.names:
            if name in (*self.spec.key, *self.spec.ordering):
                continue
            if name in self.columns:
                if self.applies(self.columns[name], record):
                    after[name] = self.value(self.columns[name], facts, name)
            elif name in record.values and self.takes(row.get(name), newer=newer):
                after[name] = record.values[name]
        return after

    def stored(self, state: Row | Tombstone) -> Any:
        return self.stored_ordering(state)

    def takes(self, stored: Any, *, newer: bool) -> bool:
        return {"newer": newer, "last": True, "first": stored is None, "keep": False}[self.default]

    @staticmethod
    def applies(text: str, record: Record) -> bool:
        reads = _reads(text, "new")
        return not reads or bool(_reads(text, "asked")) or bool(reads & record.values.keys())

    def value(self, text: str, facts: Facts, column: str | None = None) -> Any:
        """The value, or that it is not known."""
        read = [facts.o[name] for name in _reads(text, "old")] + [facts.n[name] for name in _reads(text, "new")]
        if any(value is UNKNOWN for value in read):
            return UNKNOWN
        try:
            return self.stored_in(RULES[text](facts), column)
        except Failed:
            return UNKNOWN

    def stored_in(self, value: Any, column: str | None) -> Any:
        """The value, if the column holds it. Raises :class:`Failed`."""
        if column is None or not isinstance(value, int) or isinstance(value, bool):
            return value
        return value if has_equal(value, self.spec.schema.field(column).type) else whole(value, 0)

    def ask(self, option: str, row: Row, record: Record, *, first: bool) -> Any:
        """Whether the condition is true. Raises :class:`Failed`."""
        text = self.spec.options.get(option)
        if text is None or (not first and not self.applies(text, record)):
            return None
        names = self.spec.schema.names
        facts = Facts(
            {name: row.get(name) for name in names},
            {name: record.values.get(name, row.get(name)) for name in names},
            record.values,
            first=first,
        )
        answer = self.value(text, facts)
        if answer is UNKNOWN:
            raise Failed
        return answer

    def show(self, row: Row) -> Row:
        if LOST in row or any(value is UNKNOWN for value in row.values()):
            raise Unreadable("a rule failed")
        return row
