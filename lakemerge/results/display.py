"""How results show themselves: words for amounts, and small HTML tables for notebooks. Their texts are escaped."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from mergers.wording import printable

__all__ = ["Shown", "counted", "counts", "definition_html", "html_text", "readable_bytes", "table_html"]


class Shown:
    """A dataclass that notebooks show as a table: what its ``report`` says where it has one, else its fields."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        this: Any = self
        if hasattr(self, "report"):
            return definition_html(this.report())
        return definition_html([(field.name, getattr(this, field.name)) for field in dataclasses.fields(this)])


def html_text(value: object) -> str:
    """A value as the text of a page: no markup, no control characters, nothing that turns the direction of text."""
    return escape(printable(str(value), lines=True))


def table_html(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A column without any text is left out. An empty cell of another column has a dash."""
    texts = [[str(cell) for cell in row] for row in rows]
    filled = [place for place in range(len(names)) if not texts or any(row[place] for row in texts)]
    names, rows = [names[place] for place in filled], [[row[place] or "\u2013" for place in filled] for row in texts]
    head = "".join(f"<th style='text-align:left'>{html_text(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td style='text-align:left'>{html_text(cell)}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def definition_html(facts: Iterable[tuple[str, object]]) -> str:
    """Names and values, one a line."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{html_text(name)}</th>"
        f"<td style='text-align:left'>{html_text(value)}</td></tr>"
        for name, value in facts
    )
    return f"<table><tbody>{rows}</tbody></table>"


def counted(count: float, noun: str) -> str:
    """``1 file``, ``1,000 files``."""
    number = f"{count:,}" if isinstance(count, int) else f"{count:g}"
    return f"{number} {noun}{'' if count == 1 else 's'}"


def counts(**of: int) -> str:
    """``1 file, 1,000 rows``, by noun. A noun of two words has an underscore."""
    return ", ".join(counted(count, noun.replace("_", " ")) for noun, count in of.items())


def readable_bytes(count: float) -> str:
    """A size for people: ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
