"""``VARCHAR(n)`` and ``CHAR(n)``: columns of text whose values have at most, or exactly, so many characters.

In a table they are strings. What Spark and Delta keep of the length is an entry of the field's metadata, and writers
see to it, as Spark's do: blanks at the end beyond the length are cut off, a longer text is refused, and a shorter one
of a ``CHAR`` gets blanks. Source: docs/guides/schema.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.errors import FrameError
from mergers.type_names import type_name

__all__ = ["LENGTH", "Length", "length_of", "length_problems", "lengths_of", "with_lengths"]

LENGTH: Final = b"__CHAR_VARCHAR_TYPE_STRING"
"""Where Spark and Delta keep the type of a column that was declared as ``VARCHAR(n)`` or ``CHAR(n)``."""
_DECLARED: Final = re.compile(r"(char|varchar)\(\s*([1-9][0-9]{0,8})\s*\)")
_MOST_SHOWN: Final = 40
_TAKE: Final = "take STRING"


@dataclass(frozen=True, slots=True)
class Length:
    """How long the texts of a column are."""

    most: int
    """In characters."""
    pads: bool
    """Whether shorter ones get blanks, as those of a ``CHAR`` do."""

    @property
    def ddl(self) -> str:
        return f"{'CHAR' if self.pads else 'VARCHAR'}({self.most})"


def length_of(field: pa.Field) -> Length | None:
    """``None``: the texts may have any length."""
    told = (field.metadata or {}).get(LENGTH)
    found = None if told is None else _DECLARED.fullmatch(told.decode(errors="replace").strip().lower())
    return None if found is None else Length(int(found[2]), found[1] == "char")


def lengths_of(schema: pa.Schema) -> dict[str, Length]:
    """The columns whose texts have a length."""
    return {field.name: length for field in schema if (length := length_of(field)) is not None}


def length_problems(schema: pa.Schema) -> list[str]:
    """Declared lengths that no write would see to: those within structs, lists and maps, and those that are none."""

    def inner(field: pa.Field, path: str) -> Iterator[str]:
        for place in range(field.type.num_fields):
            part = field.type.field(place)
            told = (part.metadata or {}).get(LENGTH)
            if told is not None:
                shown = told.decode(errors="replace").upper()
                yield f"{path}.{part.name}: only whole columns can be {shown}; {_TAKE}"
            yield from inner(part, f"{path}.{part.name}")

    problems: list[str] = []
    for field in schema:
        told = (field.metadata or {}).get(LENGTH)
        if told is not None and (length_of(field) is None or not pa.types.is_string(field.type)):
            shown = told.decode(errors="replace").upper()
            problems.append(f"{field.name}: a table cannot hold {shown} as {type_name(field.type)}; {_TAKE}")
        problems += inner(field, field.name)
    return problems


def with_lengths(rows: pa.RecordBatch, first_row: int) -> pa.RecordBatch:
    """The rows as columns of declared lengths have them. Raises :class:`FrameError` for a text that is too long.

    :param rows: with the fields of the table.
    :param first_row: the number of the first row, for the error message.
    """
    lengths = lengths_of(rows.schema)
    if not lengths:
        return rows
    columns = [
        _fitted(rows.column(name), name, lengths[name], first_row) if name in lengths else rows.column(name)
        for name in rows.schema.names
    ]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _fitted(values: pa.Array, name: str, length: Length, first_row: int) -> pa.Array:
    over = pc.fill_null(pc.greater(pc.utf8_length(values), length.most), False)
    if pc.any(over).as_py():
        trimmed = pc.utf8_length(pc.utf8_rtrim(values, " "))
        bad = pc.index(pc.fill_null(pc.greater(trimmed, length.most), False), True).as_py()
        if bad >= 0:
            text = values[bad].as_py()
            shown = repr(text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "...")
            raise FrameError(
                f"column {name!r} is {length.ddl}, and the value {shown} in row {first_row + bad} has {len(text)} "
                "characters: shorten it, or make the column a STRING",
                column=name,
                row=first_row + bad,
                length=len(text),
                limit=length.most,
            )
        values = pc.if_else(over, pc.utf8_slice_codeunits(values, 0, length.most), values)
    return pc.utf8_rpad(values, length.most, " ") if length.pads else values
