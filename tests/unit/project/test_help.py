"""What Python's ``help`` and editors show: a grouped overview, a text and a whole signature for each public name."""

from __future__ import annotations

import inspect
import pydoc
import re
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import lakemerge
import lakemerge.flows
import lakemerge.ingest
import lakemerge.provenance
from lakemerge import LakeTable, Merger, RowMerger

MODULES = (lakemerge, lakemerge.flows, lakemerge.ingest, lakemerge.provenance)
FOR_SERVICES = {"opened", "opened_anew"}
"""They say of themselves that they are not part of the public API."""


def public_names() -> set[str]:
    return {name for name in dir(LakeTable) if not name.startswith("_")} - FOR_SERVICES


def test_the_overview_names_every_method_once() -> None:
    text = inspect.getdoc(LakeTable)
    assert text is not None
    named = re.findall(r"\w+", re.sub(r"^    (\w+ )+ +", "", text.partition("::")[2], flags=re.MULTILINE))
    assert sorted(named) == sorted(public_names())


def test_help_shows_one_class_and_nothing_private() -> None:
    text = pydoc.plain(pydoc.render_doc(LakeTable))
    for noise in ("inherited from", "Method resolution order", "__abstractmethods__"):
        assert noise not in text
    shown = set(re.findall(r"^ \|  (\w+)(?:\(| = |$)", text, flags=re.MULTILINE))
    assert public_names() <= shown
    assert not [name for name in shown if name.startswith("_") and not name.endswith("__")]
    for name in FOR_SERVICES:
        assert "ot part of the public API" in (inspect.getdoc(getattr(LakeTable, name)) or "")


def callables() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Public functions, and methods and properties of public classes, with their names."""
    for module in MODULES:
        for name in module.__all__:
            found = getattr(module, name)
            if inspect.isfunction(found):
                yield name, found
            elif inspect.isclass(found):
                for inner, value in vars(found).items():
                    if inner.startswith("_") and inner != "__init__":
                        continue
                    function = getattr(value, "__func__", getattr(value, "fget", getattr(value, "func", value)))
                    if inspect.isfunction(function):
                        yield f"{name}.{inner}", function


ALL = dict(callables())


@pytest.mark.parametrize("name", ALL)
def test_signatures_are_whole(name: str) -> None:
    signature = inspect.signature(ALL[name])
    lacking = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.annotation is parameter.empty and parameter.name not in ("self", "cls")
    ]
    assert not lacking
    assert signature.return_annotation is not signature.empty or name.endswith(".__init__")


def test_everything_public_has_a_text() -> None:
    # The base class documents a merger's hooks, and a class documents its constructor.
    aside = {name for owner in (Merger, RowMerger) for name in (f"{owner.__name__}.{inner}" for inner in vars(owner))}
    silent = [
        name for name, found in ALL.items() if not found.__doc__ and not name.endswith("__init__") and name not in aside
    ]
    # Code of the format, which a savepoint carries along.
    assert set(silent) <= {"Savepoint.domain_name", "Savepoint.domain"}


def test_a_notebook_shows_a_table_at_every_age(tmp_path: Any) -> None:
    table = LakeTable.create(tmp_path / "<t>", "id BIGINT", key=["id"])
    assert "not chosen yet" in table._repr_html_()
    table.upsert(pa.table({"id": [1]}))
    assert "&lt;t&gt;" in table._repr_html_()
    assert "<t>" not in table._repr_html_()
    assert repr(table).startswith("LakeTable('")
