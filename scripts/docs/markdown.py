"""Docstrings and tables as Markdown."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Sequence

__all__ = ["attribute_docs", "paragraph", "table"]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(_cell(text) for text in line) + " |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def paragraph(docstring: str | None) -> str:
    """A docstring as Markdown: the roles of reStructuredText go, and so do its doubled backticks."""
    text = inspect.cleandoc(docstring or "")
    text = re.sub(r":(?:class|meth|func|mod|attr|data|exc):`~?([^`]+)`", r"`\1`", text)
    return text.replace("``", "`")


def attribute_docs(kind: type) -> dict[str, str]:
    """The texts below the attributes of a class. Python does not keep them, so they are read from the source."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    if not isinstance(body, ast.ClassDef):
        raise TypeError(f"{kind!r} is not a class")
    found: dict[str, str] = {}
    for statement, following in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            found[statement.target.id] = paragraph(following.value.value)
    return found
