"""Evaluates the expressions of rules. Each gives any number of values for a row, as texts to compare.

Null, NaN, missing properties and empty lists give no value. Each element of a list is a value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.merge_source.expressions import Call, Literal, Node, Path
from lakemerge.merge_source.nested_arrays import Bools, Ints, contiguous, list_array, run_starts, spread
from lakemerge.merge_source.rules import Rules
from lakemerge.merge_source.value_texts import case_changed, is_number, json_strings, match_texts, plain_texts

__all__ = ["Held", "columns_needed", "distinct", "held_values"]


@dataclass(frozen=True)
class Held:
    """The values that rows hold: three columns of one length, sorted by row, expression and value, each triple once."""

    rows: Ints
    expressions: Ints
    values: pa.Array
    """The values as :func:`lakemerge.merge_source.value_texts.match_texts`."""

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def encoded(self) -> pa.DictionaryArray:
        """The values with a number for each distinct one. They are hashed once for all who ask."""
        return self.values.dictionary_encode()

    @property
    def codes(self) -> Ints:
        """The number of each value among the distinct ones."""
        return self.encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


@dataclass(frozen=True, slots=True)
class _Part:
    """Values of one type without nulls, and the row of each. Rows ascend."""

    rows: Ints
    values: pa.Array
    ready: bool = False
    """Whether the values are texts to compare already."""
    literal: bool = False

    def kept(self, keep: Bools) -> _Part:
        return _Part(self.rows[keep], self.values.filter(pa.array(keep)), self.ready, self.literal)


def columns_needed(rules: Rules, offset: int, names: Sequence[str]) -> list[str]:
    """The columns of a dataset that its expressions read."""
    paths = [path for number in rules.of_dataset(offset) for path in _paths(rules.expressions[number].node)]
    found = {_column(path.names[0], names) for path in paths}
    return [name for name in names if name in found]


def held_values(rules: Rules, offset: int, rows: pa.Table, ids: pa.Array) -> Held:
    """The values that rows of a dataset hold, for each of its expressions.

    :param ids: the entities' ids.
    """
    found: list[tuple[Ints, Ints, pa.Array]] = []
    for number in rules.of_dataset(offset):
        for part in _evaluated(rules.expressions[number].node, rows, ids):
            texts = part.values if part.ready else match_texts(part.values)
            there = texts.is_valid().to_numpy(zero_copy_only=False)
            held = part.rows[there]
            found.append((held, np.full(len(held), number, dtype=np.int64), texts.drop_null()))
    if not found:
        return Held(np.empty(0, np.int64), np.empty(0, np.int64), pa.array([], pa.string()))
    at, numbers = (np.concatenate([part[place] for part in found]) for place in (0, 1))
    return distinct(at, numbers, contiguous(pa.chunked_array([part[2] for part in found], pa.string())))


def distinct(rows: Ints, numbers: Ints, values: pa.Array) -> Held:
    """Values that rows hold, in order and each once."""
    kept = np.lexsort((numbers, rows))
    if len(run_starts(rows[kept], numbers[kept])) < len(kept):  # an expression gives several values for a row
        encoded = values.dictionary_encode()
        ranks = pc.rank(encoded.dictionary, sort_keys="ascending", tiebreaker="first").to_numpy().astype(np.int64)
        codes = ranks[encoded.indices.to_numpy(zero_copy_only=False)]
        order = np.lexsort((codes, numbers, rows))
        kept = order[run_starts(rows[order], numbers[order], codes[order])]
    return Held(rows[kept], numbers[kept], values.take(pa.array(kept)))


def _paths(node: Node) -> Iterator[Path]:
    match node:
        case Path():
            yield node
        case Call(_, arguments):
            for part in arguments:
                yield from _paths(part)


def _column(name: str, names: Iterable[str]) -> str | None:
    """The column with this name or, if there is none, with this name in another case."""
    known = list(names)
    if name in known:
        return name
    return next((column for column in known if column.lower() == name.lower()), None)


def _evaluated(node: Node, rows: pa.Table, ids: pa.Array) -> list[_Part]:
    match node:
        case Path(names):
            return list(_of_path(names, rows, ids))
        case Literal(None):
            return []
        case Literal(value):
            every = np.arange(rows.num_rows, dtype=np.int64)
            return [_Part(every, pa.array([value]).take(pa.array(np.zeros_like(every))), literal=True)]
        case Call("case", arguments):
            return _cases(arguments, rows, ids)
        case Call(function, arguments):
            return _called(function, [_evaluated(part, rows, ids) for part in arguments], rows.num_rows)


def _of_path(names: tuple[str, ...], rows: pa.Table, ids: pa.Array) -> Iterator[_Part]:
    every = np.arange(rows.num_rows, dtype=np.int64)
    own = names[0].lower() if len(names) == 1 else ""
    if own == "_id":
        yield _Part(every, ids)
        return
    column = _column(names[0], rows.column_names)
    given = None if column is None else contiguous(rows.column(column))
    if own == "$ids":
        there = np.zeros(len(every), dtype=np.bool_)
        if given is not None:
            there = given.is_valid().to_numpy(zero_copy_only=False)
            for part in _below(every, given, ()):
                yield _Part(part.rows, plain_texts(part.values))
        yield _Part(every[~there], ids.filter(pa.array(~there)))
    elif given is not None:
        yield from _below(every, given, names[1:])


def _below(rows: Ints, values: pa.Array, names: tuple[str, ...]) -> Iterator[_Part]:
    """The values at the end of a path through structs, lists of structs and maps."""
    there = values.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_floating(values.type):
        there &= ~np.isnan(values.to_numpy(zero_copy_only=False))
    if not there.all():
        rows, values = rows[there], values.filter(pa.array(there))
    kind = values.type
    if pa.types.is_list(kind):
        parents = pc.list_parent_indices(values).to_numpy(zero_copy_only=False).astype(np.int64)
        yield from _below(rows[parents], pc.list_flatten(values), names)
    elif not names:
        yield _Part(rows, values)
    elif pa.types.is_struct(kind):
        field = _column(names[0], [field.name for field in kind])
        if field is not None:
            yield from _below(rows, values.flatten()[kind.get_field_index(field)], names[1:])
    elif pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        yield from _below(rows, pc.map_lookup(values, names[0], "first"), names[1:])


def _called(function: str, arguments: list[list[_Part]], rows: int) -> list[_Part]:
    everything = [part for parts in arguments for part in parts]
    match function:
        case "lower" | "upper":
            return [_Part(p.rows, case_changed(p.values, upper=function == "upper")) for p in _strings(everything)]
        case "strip":
            return [_Part(part.rows, pc.utf8_trim_whitespace(part.values)) for part in _strings(everything)]
        case "string":
            return [_Part(part.rows, plain_texts(part.values)) for part in everything]
        case "list":
            return everything
        case "coalesce":
            return _coalesced(arguments, rows)
        case "nullif":
            return _without(arguments)
        case "concat":
            return _concatenated(_strings(everything), rows)
        case "tuples":
            return _tuples(arguments, rows)
        case _:
            raise AssertionError(f"the parser let an unknown function through: {function}")


def _cases(arguments: Sequence[Node], rows: pa.Table, ids: pa.Array) -> list[_Part]:
    """For each row, the values that the first condition that holds gives, or those of ``else``."""
    open_rows = np.ones(rows.num_rows, dtype=np.bool_)
    found: list[_Part] = []
    paired = len(arguments) - len(arguments) % 2
    for at in range(0, paired, 2):
        holds, _ = _judged(arguments[at], rows, ids)
        chosen = open_rows & holds
        found += [part.kept(chosen[part.rows]) for part in _evaluated(arguments[at + 1], rows, ids)]
        open_rows &= ~holds
    if len(arguments) % 2:
        found += [part.kept(open_rows[part.rows]) for part in _evaluated(arguments[-1], rows, ids)]
    return found


def _judged(node: Node, rows: pa.Table, ids: pa.Array) -> tuple[Bools, Bools]:
    """For which rows a condition holds, and for which it does not. As in SQL it is neither where a side has no value.

    Of several values one has to meet ``=``, ``<`` and the like. ``<>`` is what ``=`` is not: no values are equal.
    """
    if not isinstance(node, Call):
        raise AssertionError(f"the parser let something through that is no condition: {node}")
    function, arguments = node.function, node.arguments
    if function in ("and", "or"):
        parts = [_judged(part, rows, ids) for part in arguments]
        every, some = (0, 1) if function == "and" else (1, 0)
        pair = [np.asarray(np.stack([part[every] for part in parts]).all(axis=0))]
        pair.append(np.asarray(np.stack([part[some] for part in parts]).any(axis=0)))
        return pair[every], pair[some]
    if function == "not":
        yes, no = _judged(arguments[0], rows, ids)
        return no, yes
    sides = [_evaluated(part, rows, ids) for part in arguments]
    there = [_with_value(parts, rows.num_rows) for parts in sides]
    if function == "is-null":
        return ~there[0], there[0]
    known = there[0] & np.stack(there[1:]).any(axis=0)
    if function in ("eq", "neq", "in"):
        met = _equal(sides[0], [part for parts in sides[1:] for part in parts], rows.num_rows) & known
    else:
        met, known = _ordered(function, sides[0], sides[1], rows.num_rows)
    yes, no = met, known & ~met
    return (no, yes) if function == "neq" else (yes, no)


def _with_value(parts: Sequence[_Part], rows: int) -> Bools:
    there = np.zeros(rows, dtype=np.bool_)
    for part in parts:
        there[part.rows] = True
    return there


def _matched(parts: Sequence[_Part]) -> tuple[Ints, pa.Array]:
    """The rows and the match texts of values."""
    texts = [part.values if part.ready else match_texts(part.values) for part in parts]
    rows = np.concatenate([np.empty(0, np.int64), *(part.rows for part in parts)])
    return rows, contiguous(pa.chunked_array(texts, pa.string()))


def _equal(one: Sequence[_Part], other: Sequence[_Part], rows: int) -> Bools:
    """The rows in which both have a value in common."""
    met = np.zeros(rows, dtype=np.bool_)
    at, texts = _matched(one)
    met[at[_in_row(at, texts, *_matched(other))]] = True
    return met


def _in_row(rows: Ints, texts: pa.Array, other_rows: Ints, others: pa.Array) -> Bools:
    """Which texts the others have in the same row."""
    codes = pc.index_in(contiguous(pa.chunked_array([texts, others])), value_set=others.drop_null().unique())
    numbers = codes.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    own, theirs = numbers[: len(texts)], numbers[len(texts) :]
    width = len(others) + 1
    found: Bools = np.isin(rows * width + own, (other_rows * width + theirs)[theirs >= 0]) & (own >= 0)
    return found


def _ordered(function: str, one: Sequence[_Part], other: Sequence[_Part], rows: int) -> tuple[Bools, Bools]:
    """Where some value of one side is less (or more) than some value of the other, and where both have values of a kind
    that can be compared: numbers, or strings by their UTF-8 bytes."""
    met, known = np.zeros(rows, dtype=np.bool_), np.zeros(rows, dtype=np.bool_)
    is_less, has_equal = function in ("lt", "lte"), function in ("lte", "gte")
    for ranked in (_numbers_ranked, _strings_ranked):
        (at, own), (other_at, others) = ranked(one, other)
        # One value has to meet the other, so the least of one side is compared with the greatest of the other.
        least, greatest = np.full(rows, np.inf), np.full(rows, -np.inf)
        low, high = ((at, own), (other_at, others)) if is_less else ((other_at, others), (at, own))
        np.minimum.at(least, *low)
        np.maximum.at(greatest, *high)
        both = _marked(at, rows) & _marked(other_at, rows)
        met |= both & (least <= greatest if has_equal else least < greatest)
        known |= both
    return met, known


def _marked(at: Ints, rows: int) -> Bools:
    marks = np.zeros(rows, dtype=np.bool_)
    marks[at] = True
    return marks


_Ranks: TypeAlias = tuple[Ints, npt.NDArray[np.float64]]


def _numbers_ranked(one: Sequence[_Part], other: Sequence[_Part]) -> tuple[_Ranks, _Ranks]:
    def numbers(parts: Sequence[_Part]) -> _Ranks:
        own = [part for part in parts if is_number(part.values.type)]
        values = [part.values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False) for part in own]
        return np.concatenate([np.empty(0, np.int64), *(part.rows for part in own)]), np.concatenate(
            [np.empty(0), *values]
        )

    return numbers(one), numbers(other)


def _strings_ranked(one: Sequence[_Part], other: Sequence[_Part]) -> tuple[_Ranks, _Ranks]:
    sides = [_strings(one), _strings(other)]
    texts = contiguous(pa.chunked_array([part.values for parts in sides for part in parts], pa.string()))
    ranks = np.empty(0)
    if len(texts):
        ranks = pc.rank(texts, tiebreaker="dense").to_numpy(zero_copy_only=False).astype(np.float64)
    rows = [np.concatenate([np.empty(0, np.int64), *(part.rows for part in parts)]) for parts in sides]
    return (rows[0], ranks[: len(rows[0])]), (rows[1], ranks[len(rows[0]) :])


def _without(arguments: list[list[_Part]]) -> list[_Part]:
    """The values of the first argument that no other argument has in the same row."""
    others = _matched([part for parts in arguments[1:] for part in parts])
    found = []
    for part in arguments[0]:
        at, texts = _matched([part])
        found.append(part.kept(~_in_row(at, texts, *others)))
    return found


def _strings(parts: Iterable[_Part]) -> list[_Part]:
    return [part for part in parts if pa.types.is_string(part.values.type) and not part.ready]


def _coalesced(arguments: list[list[_Part]], rows: int) -> list[_Part]:
    """For each row, the values of the first argument that has any. A single argument gives its first value."""
    if len(arguments) == 1:
        arguments = [[part.kept(_firsts(part.rows))] for part in arguments[0]]
    open_rows = np.ones(rows, dtype=np.bool_)
    found: list[_Part] = []
    for parts in arguments:
        taken = [part.kept(open_rows[part.rows]) for part in parts]
        for part in taken:
            open_rows[part.rows] = False
        found += taken
    return found


def _firsts(rows: Ints) -> Bools:
    first = np.zeros(len(rows), dtype=np.bool_)
    first[run_starts(rows)] = True
    return first


def _concatenated(parts: list[_Part], rows: int) -> list[_Part]:
    """All strings of a row joined into one. Literals alone give no value: missing properties must not make entities
    match."""
    own = np.zeros(rows, dtype=np.bool_)
    for part in parts:
        if not part.literal:
            own[part.rows] = True
    parts = [part.kept(own[part.rows]) for part in parts]
    if not own.any():
        return []
    at = np.concatenate([part.rows for part in parts])
    order = np.argsort(at, kind="stable")
    texts = contiguous(pa.chunked_array([part.values for part in parts], pa.string())).take(pa.array(order))
    counts = np.bincount(at, minlength=rows)[own]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
    return [_Part(np.flatnonzero(own), pc.binary_join(list_array(offsets, texts), ""))]


def _tuples(arguments: list[list[_Part]], rows: int) -> list[_Part]:
    """For each row, every combination of one value from each argument."""
    at = np.arange(rows, dtype=np.int64)
    made: pa.Array | None = None
    for parts in arguments:
        own, texts = _sorted_texts(parts)
        counts = np.bincount(own, minlength=rows).astype(np.int64)
        starts = np.cumsum(counts) - counts
        group, place = spread(counts[at])
        chosen = texts.take(pa.array(starts[at[group]] + place))
        before = None if made is None else made.take(pa.array(group))
        made = chosen if before is None else pc.binary_join_element_wise(before, chosen, ",")
        at = at[group]
    whole = pc.binary_join_element_wise("u[", made, "]", "")
    return [_Part(at, whole, ready=True)]


def _sorted_texts(parts: list[_Part]) -> tuple[Ints, pa.Array]:
    """The values of an argument as quoted texts, in the order of their rows."""
    texts = [json_strings(part.values if part.ready else match_texts(part.values)) for part in parts]
    rows = np.concatenate([np.empty(0, np.int64), *(part.rows for part in parts)])
    joined = contiguous(pa.chunked_array(texts, pa.string()))
    there = joined.is_valid().to_numpy(zero_copy_only=False)
    rows, joined = rows[there], joined.drop_null()
    order = np.argsort(rows, kind="stable")
    return rows[order], joined.take(pa.array(order))
