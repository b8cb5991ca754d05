"""The functions that filters know, by their names in Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from lakemerge.errors import FilterError
from lakemerge.sql import dates, nested, strings
from lakemerge.sql.arithmetic import absolute, arithmetic, rounded, square_root, whole
from lakemerge.sql.casts import as_text, cast
from lakemerge.sql.logic import case, coalesce, compare, extreme, is_nan, is_null, negation
from lakemerge.sql.nodes import Constant, Node, call
from lakemerge.sql.patterns import java_regex, matched, pattern_call
from lakemerge.sql.types import BIGINT, DATE, DOUBLE, INT, LOCAL, STRING, TIMESTAMP, is_text, is_time
from mergers.type_names import type_name

__all__ = ["FUNCTIONS", "Function", "add_days", "concat", "like_java", "substring", "trim"]

Build = Callable[[Sequence[Node], str], Node]


@dataclass(frozen=True, slots=True)
class Function:
    least: int
    """It takes at least this many arguments."""
    most: int
    """It takes at most this many arguments."""
    build: Build


_MANY = 1000
_BOOL = pa.bool_()


def substring(nodes: Sequence[Node], text: str) -> Node:
    arguments = [as_text(nodes[0]), *(_count(node, text) for node in nodes[1:])]
    return call(strings.substring, arguments, STRING, text)


def trim(of: Node, characters: Node | None, text: str, *, at_start: bool, at_end: bool) -> Node:
    """``TRIM``: removes these characters at the ends of the text. Without ``characters``, it removes blanks."""
    given = " " if characters is None else _literal_text(characters, text)
    kernel = partial(strings.trimmed, characters=given, at_start=at_start, at_end=at_end)
    return call(kernel, [as_text(of)], STRING, text)


def like_java(nodes: Sequence[Node], text: str) -> Node:
    """``RLIKE``. Raises :class:`FilterError` for patterns that Arrow might understand differently."""
    pattern = _literal_text(nodes[1], text)
    if pattern is None:
        return Constant(None, _BOOL, text)
    regex = java_regex(pattern)
    try:
        if regex is not None:
            matched(pa.array([""]), regex)
            return call(partial(matched, regex=regex), [as_text(nodes[0])], _BOOL, text)
    except pa.ArrowInvalid:
        pass
    raise FilterError(
        f"{text}: a filter knows only plain regular expressions (no look-around, no flags, no \\b, no possessive "
        f"repetition, no sets in sets), and {pattern!r} is none",
        construct=text,
    )


def _literal_text(node: Node, text: str) -> str | None:
    if not isinstance(node, Constant) or not (is_text(node.kind) or node.value is None):
        raise FilterError(f"{text}: {node.text} must be a text literal", construct=text)
    return None if node.value is None else str(node.value)


def _count(node: Node, text: str) -> Node:
    """A number of characters or days."""
    if not pa.types.is_integer(node.kind) and not pa.types.is_null(node.kind):
        raise FilterError(f"{text}: {node.text} is {type_name(node.kind)}, not an integer; use CAST", construct=text)
    return cast(node, INT)


def _date(node: Node, text: str) -> Node:
    return cast(_temporal(node, text), DATE)


def _clock(node: Node, text: str) -> Node:
    """The node as a time. A date becomes its midnight."""
    node = _temporal(node, text)
    return cast(node, LOCAL) if pa.types.is_date(node.kind) else _instant(node, text)


def _instant(node: Node, text: str) -> Node:
    node = _temporal(node, text)
    return node if node.kind == LOCAL else cast(node, TIMESTAMP)


def _temporal(node: Node, text: str) -> Node:
    if not (is_time(node.kind) or is_text(node.kind) or pa.types.is_null(node.kind)):
        raise FilterError(f"{text}: {node.text} is {type_name(node.kind)}, not a date or a time", construct=text)
    return node


def _binary(operator: str) -> Build:
    return lambda nodes, text: arithmetic(operator, nodes[0], nodes[1], text)


def _whole(*, up: bool) -> Build:
    return lambda nodes, text: whole(nodes[0], text, up=up)


def _round(nodes: Sequence[Node], text: str) -> Node:
    digits = nodes[1] if len(nodes) > 1 else Constant(0, INT, "0")
    if not isinstance(digits, Constant) or not isinstance(digits.value, int):
        raise FilterError(f"{text}: the number of digits must be an integer literal", construct=text)
    return rounded(nodes[0], digits.value, text)


def _extreme(operator: str) -> Build:
    return lambda nodes, text: extreme(operator, nodes, text)


def _null_if(nodes: Sequence[Node], text: str) -> Node:
    equal = compare("=", nodes[0], nodes[1], text)
    return case([(equal, Constant(None, nodes[0].kind, "NULL"))], nodes[0], text)


def _if_known(nodes: Sequence[Node], text: str) -> Node:
    """``nvl2``."""
    return case([(is_null(nodes[0], text), nodes[2])], nodes[1], text)


def _of_text(kernel: Callable[[pa.Array], pa.Array], kind: pa.DataType = STRING) -> Build:
    return lambda nodes, text: call(kernel, [as_text(nodes[0])], kind, text)


def _length(nodes: Sequence[Node], text: str) -> Node:
    node = nodes[0] if pa.types.is_binary(nodes[0].kind) else as_text(nodes[0])
    return call(strings.length, [node], INT, text)


def _trim(*, at_start: bool, at_end: bool) -> Build:
    return lambda nodes, text: trim(nodes[0], None, text, at_start=at_start, at_end=at_end)


def _end(kernel: Callable[[pa.Array, pa.Array], pa.Array]) -> Build:
    return lambda nodes, text: call(kernel, [as_text(nodes[0]), _count(nodes[1], text)], STRING, text)


def concat(nodes: Sequence[Node], text: str) -> Node:
    return call(strings.concatenated, [as_text(node) for node in nodes], STRING, text)


def _replace(nodes: Sequence[Node], text: str) -> Node:
    search = _literal_text(nodes[1], text)
    by = _literal_text(nodes[2], text) if len(nodes) > 2 else ""
    return call(partial(strings.replaced, search=search, by=by), [as_text(nodes[0])], STRING, text)


def _both_texts(kernel: Callable[[pa.Array, pa.Array], pa.Array]) -> Build:
    return lambda nodes, text: call(kernel, [as_text(node) for node in nodes], _BOOL, text)


def _contains(nodes: Sequence[Node], text: str) -> Node:
    return pattern_call(strings.holds, as_text(nodes[0]), as_text(nodes[1]), text)


def _pad(kernel: Callable[[pa.Array, pa.Array, pa.Array], pa.Array]) -> Build:
    def build(nodes: Sequence[Node], text: str) -> Node:
        pad = as_text(nodes[2]) if len(nodes) > 2 else Constant(" ", STRING, "' '")
        return call(kernel, [as_text(nodes[0]), _count(nodes[1], text), pad], STRING, text, fails=True)

    return build


def _split(nodes: Sequence[Node], text: str) -> Node:
    separator = _literal_text(nodes[1], text)
    if not separator or any(character in "\\^$.[]{}()|*+?" for character in separator):
        raise FilterError(f"{text}: a filter splits at plain text only, not at a regular expression", construct=text)
    return call(partial(strings.split, separator=separator), [as_text(nodes[0])], pa.list_(STRING), text)


def _date_field(field: str) -> Build:
    return lambda nodes, text: call(partial(dates.date_field, field=field), [_date(nodes[0], text)], INT, text)


def _clock_field(field: str) -> Build:
    return lambda nodes, text: call(partial(dates.clock_field, field=field), [_clock(nodes[0], text)], INT, text)


def _date_trunc(nodes: Sequence[Node], text: str) -> Node:
    level = dates.LEVELS.get((_literal_text(nodes[0], text) or "").lower())
    if level is None:
        return Constant(None, TIMESTAMP, text)
    of = cast(_temporal(nodes[1], text), TIMESTAMP)
    return call(partial(dates.truncated_time, level=level), [of], TIMESTAMP, text)


def _trunc(nodes: Sequence[Node], text: str) -> Node:
    level = dates.DATE_LEVELS.get((_literal_text(nodes[1], text) or "").lower())
    if level is None:
        return Constant(None, DATE, text)
    return call(partial(dates.truncated_date, level=level), [_date(nodes[0], text)], DATE, text)


def _days_later(*, back: bool) -> Build:
    def build(nodes: Sequence[Node], text: str) -> Node:
        return add_days(_date(nodes[0], text), nodes[1], text, back=back)

    return build


def add_days(date: Node, days: Node, text: str, *, back: bool) -> Node:
    """The date that is ``days`` days later, or earlier if ``back``. ``days`` is at most an INT. If one of both is NULL,
    the result is NULL."""
    if days.kind == BIGINT:
        raise FilterError(f"{text}: {days.text} is BIGINT, and Spark adds an INT of days; use CAST", construct=text)
    kernel = dates.days_before if back else dates.days_later
    return call(kernel, [date, _count(days, text)], DATE, text)


def _days_between(nodes: Sequence[Node], text: str) -> Node:
    return call(dates.days_between, [_date(node, text) for node in nodes], INT, text)


def _seconds_since(nodes: Sequence[Node], text: str) -> Node:
    if is_text(nodes[0].kind):
        raise FilterError(f"{text}: unix_timestamp of text needs a format, which filters do not know", construct=text)
    return call(dates.seconds_since, [cast(_temporal(nodes[0], text), TIMESTAMP)], BIGINT, text)


def _to(kind: pa.DataType) -> Build:
    return lambda nodes, text: cast(nodes[0], kind, text)


def _to_date(nodes: Sequence[Node], text: str) -> Node:
    return _date(nodes[0], text)


def _of_lists(operator: str) -> Build:
    return lambda nodes, text: nested.array_of_two(operator, nodes, text)


def _exactly(count: int, build: Build) -> Function:
    return Function(count, count, build)


FUNCTIONS: dict[str, Function] = {
    # numbers
    "abs": _exactly(1, lambda nodes, text: absolute(nodes[0], text)),
    "mod": _exactly(2, _binary("%")),
    "pmod": _exactly(2, _binary("pmod")),
    "round": Function(1, 2, _round),
    "floor": _exactly(1, _whole(up=False)),
    "ceil": _exactly(1, _whole(up=True)),
    "ceiling": _exactly(1, _whole(up=True)),
    "sqrt": _exactly(1, lambda nodes, text: square_root(nodes[0], text)),
    "greatest": Function(2, _MANY, _extreme(">")),
    "least": Function(2, _MANY, _extreme("<")),
    "isnan": _exactly(1, lambda nodes, text: is_nan(nodes[0], text)),
    # nulls
    "coalesce": Function(1, _MANY, coalesce),
    "nvl": _exactly(2, coalesce),
    "ifnull": _exactly(2, coalesce),
    "nvl2": _exactly(3, _if_known),
    "nullif": _exactly(2, _null_if),
    "isnull": _exactly(1, lambda nodes, text: is_null(nodes[0], text)),
    "isnotnull": _exactly(1, lambda nodes, text: negation(is_null(nodes[0], text), text)),
    # text
    **dict.fromkeys(("lower", "lcase"), _exactly(1, _of_text(strings.lower))),
    **dict.fromkeys(("upper", "ucase"), _exactly(1, _of_text(strings.upper))),
    "trim": _exactly(1, _trim(at_start=True, at_end=True)),
    "ltrim": _exactly(1, _trim(at_start=True, at_end=False)),
    "rtrim": _exactly(1, _trim(at_start=False, at_end=True)),
    **dict.fromkeys(("length", "char_length", "character_length", "len"), _exactly(1, _length)),
    **dict.fromkeys(("substring", "substr"), Function(2, 3, substring)),
    "left": _exactly(2, _end(strings.left)),
    "right": _exactly(2, _end(strings.right)),
    "concat": Function(1, _MANY, concat),
    "replace": Function(2, 3, _replace),
    "startswith": _exactly(2, _both_texts(strings.begins_with)),
    "endswith": _exactly(2, _both_texts(strings.ends_with)),
    "contains": _exactly(2, _contains),
    **dict.fromkeys(("regexp_like", "regexp", "rlike"), _exactly(2, like_java)),
    "lpad": Function(2, 3, _pad(strings.padded_left)),
    "rpad": Function(2, 3, _pad(strings.padded_right)),
    "split": _exactly(2, _split),
    # dates and times
    **{field: _exactly(1, _date_field(field)) for field in sorted(dates.DATE_FIELDS)},
    "dayofmonth": _exactly(1, _date_field("day")),
    **{field: _exactly(1, _clock_field(field)) for field in dates.TIME_FIELDS},
    "date_trunc": _exactly(2, _date_trunc),
    "trunc": _exactly(2, _trunc),
    **dict.fromkeys(("date_add", "dateadd"), _exactly(2, _days_later(back=False))),
    "date_sub": _exactly(2, _days_later(back=True)),
    **dict.fromkeys(("datediff", "date_diff"), _exactly(2, _days_between)),
    "to_date": _exactly(1, _to_date),
    "to_timestamp": _exactly(1, _to(TIMESTAMP)),
    "unix_timestamp": _exactly(1, _seconds_since),
    # casts by the name of the type
    "tinyint": _exactly(1, _to(pa.int8())),
    "smallint": _exactly(1, _to(pa.int16())),
    "int": _exactly(1, _to(INT)),
    "bigint": _exactly(1, _to(BIGINT)),
    "float": _exactly(1, _to(pa.float32())),
    "double": _exactly(1, _to(DOUBLE)),
    "decimal": _exactly(1, _to(pa.decimal128(10, 0))),
    "string": _exactly(1, _to(STRING)),
    "boolean": _exactly(1, _to(_BOOL)),
    "date": _exactly(1, _to(DATE)),
    "timestamp": _exactly(1, _to(TIMESTAMP)),
    # lists and maps
    "array_contains": _exactly(2, lambda nodes, text: nested.array_contains(nodes[0], nodes[1], text)),
    "array_distinct": _exactly(1, lambda nodes, text: nested.array_distinct(nodes[0], text)),
    **{f"array_{each}": _exactly(2, _of_lists(each)) for each in ("union", "intersect", "except")},
    **dict.fromkeys(("size", "cardinality"), _exactly(1, lambda nodes, text: nested.size(nodes[0], text))),
}
"""The keys are names in lower case."""
