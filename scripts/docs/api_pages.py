"""The pages of the public API: directives for mkdocstrings, one for each public name."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Final

import lakemerge

__all__ = ["MODULES", "api_pages"]

MODULES: Final[Mapping[str, str]] = {
    "lakemerge.ingest": "Ingest",
    "lakemerge.merge_source": "Merge sources",
    "lakemerge.provenance": "Provenance",
    "lakemerge.flows": "Flows",
}
_MERGERS: Final = frozenset(
    {"DELETE", "Delete", "Laws", "Merger", "Record", "RowKind", "RowMerger", "register", "register_merger"}
)
_ERRORS: Final = frozenset(lakemerge.errors.__all__)


def api_pages() -> Iterator[tuple[str, str]]:
    """Names of files, and what they hold. Errors have a page of their own."""
    names = [name for name in lakemerge.__all__ if name not in _ERRORS]
    yield "api-table.md", "\n".join(_table())
    results = [name for name in names if name not in _MERGERS and name != "LakeTable"]
    yield (
        "api-results.md",
        _page("Settings and results", "What calls of a table take and return.", [("lakemerge", n) for n in results]),
    )
    text = "What a merger of your own is made of. [Write your own merger](../guides/user-mergers.md) explains it."
    yield "api-mergers.md", _page("Mergers", text, [("lakemerge", name) for name in names if name in _MERGERS])
    for module, title in MODULES.items():
        public = importlib.import_module(module).__all__
        yield f"api-{title.lower().replace(' ', '-')}.md", _page(title, f"`{module}`", [(module, n) for n in public])


_NOT_FOR_USERS: Final = frozenset({"opened", "opened_anew"})
"""What the library's own packages call."""


def _table() -> Iterator[str]:
    """The methods of the class itself come first, which make and open a table, write and read."""
    kinds = [lakemerge.LakeTable, *(kind for kind in lakemerge.LakeTable.__mro__[1:] if kind.__module__ != "builtins")]
    names = dict.fromkeys(name for kind in kinds for name in vars(kind) if not name.startswith("_"))
    yield "# LakeTable\n"
    yield "::: lakemerge.LakeTable"
    yield "    options:"
    yield "      show_root_heading: false"
    yield "      show_root_toc_entry: false"
    yield "      show_signature: true"
    yield "      merge_init_into_class: false"
    yield "      members:"
    yield from (f"        - {name}" for name in names if name not in _NOT_FOR_USERS)
    yield ""


def _page(title: str, text: str, names: list[tuple[str, str]]) -> str:
    return "\n".join([f"# {title}\n", f"{text}\n", *(_directive(f"{module}.{name}") for module, name in names)])


def _directive(path: str) -> str:
    return f"::: {path}\n"
