"""Equality rules: expressions, and the classes within which equal values make entities the same.

Rules that share an expression form a class. A value joins entities only if at least two different expressions of a
class have it, or one that a rule compares with itself. Entities that share it through one other expression alone stay
apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from lakemerge.merge_source.expressions import (
    Expression,
    ExpressionError,
    Literal,
    Path,
    parse_equality,
    parse_expression,
    shown,
)

__all__ = ["IDS", "Rules", "parse_rules", "rules_of", "with_overrides"]

IDS = ("_id", "$ids")
"""Properties that hold an entity's ids."""


@dataclass(frozen=True, slots=True)
class Rules:
    """All rules of a configuration. Two are equal if they mean the same, in whatever order they are written."""

    expressions: tuple[Expression, ...]
    """Each expression once, sorted by dataset and text. The number of an expression is its place here."""
    classes: tuple[tuple[int, ...], ...]
    """The numbers of each class's expressions. If each pair is a rule by itself, an expression may be in several."""
    alone: tuple[int, ...] = ()
    """The numbers of expressions that a rule compares with themselves: they join entities of one dataset."""
    pairs: tuple[tuple[Expression, Expression], ...] = field(default=(), repr=False, compare=False)
    """The sides of all rules."""
    pairwise: bool = field(default=False, repr=False, compare=False)
    same: tuple[int, ...] = ()
    """For each dataset the number of the expression that stands for overrides that say ``same``; none without a table
    of overrides."""
    different: tuple[int, ...] = ()
    """The same for ``different``. These are in no class."""

    def of_dataset(self, offset: int) -> list[int]:
        """The numbers of the expressions over the rows of a dataset."""
        stand_ins = {*self.same, *self.different}
        return [
            number
            for number, expression in enumerate(self.expressions)
            if expression.dataset == offset and number not in stand_ins
        ]

    def classes_of(self, number: int) -> list[int]:
        """The classes of an expression."""
        return [place for place, numbers in enumerate(self.classes) if number in numbers]

    def covers_ids(self, offsets: Iterable[int]) -> bool:
        """Whether a class compares the ids of entities of all these datasets."""
        wanted = set(offsets)
        return any(wanted <= self._by_id(numbers) for numbers in _joined(self.classes))

    def _by_id(self, numbers: Iterable[int]) -> set[int]:
        found = [self.expressions[number] for number in numbers]
        ids = [Path((name,)) for name in IDS]
        return {one.dataset for one in found if one.meaning in ids}

    def shown(self, number: int, aliases: Sequence[str]) -> str:
        if number in self.same or number in self.different:
            return "override"
        return shown(self.expressions[number], aliases)

    @property
    def text(self) -> list[object]:
        """The rules as JSON. It is equal for rules that mean the same."""
        classes = [list(numbers) for numbers in self.classes]
        return [[expression.text for expression in self.expressions], classes, list(self.alone)]


def parse_rules(
    equality: Sequence[object],
    equality_sets: Sequence[object],
    aliases: Sequence[str],
    *,
    pairwise: bool,
    problems: list[str],
) -> Rules:
    """Read all rules. Everything wrong with them is added to ``problems``, with its place.

    :param pairwise: whether each rule, and each pair of a set, is a class of its own.
    """
    pairs: list[tuple[Expression, Expression]] = []
    for place, rule in enumerate(equality):
        try:
            pairs.append(parse_equality(rule, aliases))
        except ExpressionError as error:
            problems.append(f"equality[{place}]: {error}")
    for place, given in enumerate(equality_sets):
        pairs += combinations(_set(given, f"equality_sets[{place}]", aliases, problems), 2)
    return rules_of(pairs, pairwise=pairwise)


def rules_of(pairs: Sequence[tuple[Expression, Expression]], *, pairwise: bool) -> Rules:
    """The rules that compare these sides."""
    # Of several spellings of an expression one is shown, whatever the order of the rules.
    spellings = sorted((expression for pair in pairs for expression in pair), key=lambda one: repr(one.node))
    by_text = {expression.text: expression for expression in reversed(spellings)}
    expressions = sorted(by_text.values(), key=lambda one: (one.dataset, one.text))
    numbers = {expression.text: number for number, expression in enumerate(expressions)}
    groups = {tuple(sorted({numbers[one.text], numbers[other.text]})) for one, other in pairs}
    classes = groups if pairwise else {tuple(sorted(group)) for group in _joined(groups)}
    alone = sorted({numbers[one.text] for one, other in pairs if one.text == other.text})
    return Rules(tuple(expressions), tuple(sorted(classes)), tuple(alone), tuple(pairs), pairwise)


def with_overrides(rules: Rules, datasets: int) -> Rules:
    """The rules, and expressions that stand for overrides."""
    count = len(rules.expressions)
    nothing = tuple(Expression(offset, Literal(None), Literal(None)) for offset in range(datasets))
    same = tuple(range(count, count + datasets))
    return replace(
        rules,
        expressions=(*rules.expressions, *nothing, *nothing),
        classes=(*rules.classes, same),
        alone=(*rules.alone, *same),
        same=same,
        different=tuple(range(count + datasets, count + 2 * datasets)),
    )


def _set(given: object, where: str, aliases: Sequence[str], problems: list[str]) -> list[Expression]:
    if isinstance(given, str) or not isinstance(given, Sequence):
        problems.append(f"{where} is not a list of expressions: {given!r}")
        return []
    found: dict[str, Expression] = {}
    for place, part in enumerate(given):
        try:
            expression = parse_expression(part, aliases)
            found[expression.text] = expression
        except ExpressionError as error:
            problems.append(f"{where}[{place}]: {error}")
    return list(found.values())


def _joined(groups: Iterable[Iterable[int]]) -> list[set[int]]:
    """Join the groups that share a number."""
    joined: list[set[int]] = []
    for group in groups:
        whole = set(group)
        for other in [other for other in joined if other & whole]:
            joined.remove(other)
            whole |= other
        joined.append(whole)
    return joined
