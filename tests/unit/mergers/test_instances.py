"""Mergers given as instances, and what is said of classes that break their contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

from lakemerge import InputError, LakeTable, Laws, Merger, MergerConfigurationError, MergerContractError, RowMerger
from mergers import Groups, Merged, Status, TableShape
from mergers.testing import find_counterexample

ID = "6b0b6c7e-1f0c-4d4a-8a46-5f1c2a9d7e"
SCHEMA = "id BIGINT, v BIGINT"


class Own(RowMerger):
    id, name = f"{ID}01", "own-init"

    def __init__(self, cap: int = 10) -> None:
        self.cap = cap

    def merge(self, older: Any, newer: Any) -> Any:
        return {**newer, "v": min(self.cap, older["v"] + newer["v"])}


class Both(Own):
    """It reads and writes its options in its own way."""

    id, name = f"{ID}02", "own-options"

    @classmethod
    def from_options(cls, options: Mapping[str, Any], shape: TableShape) -> Both:
        return cls(options.get("cap", 10))

    def options(self) -> Mapping[str, object]:
        return {"cap": self.cap}


class Slotted(RowMerger):
    __slots__ = ("cap",)
    id, name = f"{ID}03", "slotted"

    def __init__(self, cap: int = 10) -> None:
        self.cap = cap

    def merge(self, older: Any, newer: Any) -> Any:
        return newer


@dataclass(frozen=True)
class Fields(RowMerger):
    id, name = f"{ID}04", "fields"
    cap: int = 10
    parts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "made", self.cap + 1)

    @cached_property
    def costly(self) -> int:
        return self.cap * 2

    def merge(self, older: Any, newer: Any) -> Any:
        return {**newer, "v": min(self.cap, older["v"] + newer["v"])}


def put(table: LakeTable, *values: int) -> None:
    for value in values:
        table.upsert(pa.table({"id": [1], "v": [value]}))


def test_what_an_instance_was_made_with_is_kept_or_refused(tmp_path: Path) -> None:
    changed = Fields()
    object.__setattr__(changed, "made", 77)
    for number, lossy in enumerate((Own(cap=5), Slotted(cap=5), changed)):
        with pytest.raises(MergerConfigurationError, match="cap" if number < 2 else "made"):
            LakeTable.create(tmp_path / f"lossy{number}", SCHEMA, key=["id"], merger=lossy)
        assert not (tmp_path / f"lossy{number}").exists()
    used = Fields(cap=5, parts=("a",))
    assert used.costly == 10
    for number, kept in enumerate((Own(), Both(cap=5), used)):
        path = tmp_path / f"kept{number}"
        table = LakeTable.create(path, SCHEMA, key=["id"], merger=kept)
        put(table, 4, 4)
        expected = {"id": 1, "v": 8 if number == 0 else 5}
        assert table.get({"id": 1}) == expected
        assert LakeTable.open(path, mergers=[type(kept)]).get({"id": 1}) == expected


def test_an_instance_brings_its_class(tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path / "t", SCHEMA, key=["id"])
    put(table, 4)
    table.compact()
    table.alter(merger=Fields(cap=5))
    put(table, 4)
    assert table.get({"id": 1}) == {"id": 1, "v": 5}
    result = table.replay(tmp_path / "again", merger=Both(cap=6))
    assert result.commits == 2
    assert LakeTable.open(tmp_path / "again", mergers=[Both]).get({"id": 1}) == {"id": 1, "v": 6}


class Groupwise(Merger):
    id, name = f"{ID}05", "groupwise"
    answer: ClassVar[Any] = None

    def merge_groups(self, groups: Groups) -> Any:
        return type(self).answer(groups)


def _short(groups: Groups) -> Merged:
    return Merged(np.zeros(0, dtype=np.int8), np.zeros(0, dtype=np.int64))


def _of_python(groups: Groups) -> Any:
    count = len(groups.sizes)
    return Merged([Status.ROW] * count, groups.offsets[:-1])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda groups: None, "must return a Merged, not None"),
        (lambda groups: 1 / 0, "ZeroDivisionError"),
        (_short, "entries for"),
        (_of_python, "status must be a numpy array of integers"),
    ],
    ids=["none", "raises", "too short", "lists"],
)
def test_what_a_vectorised_merger_may_not_give(answer: Any, told: str, tmp_path: Path) -> None:
    Groupwise.answer = staticmethod(lambda groups: Merged(np.full(len(groups.sizes), Status.ROW), groups.offsets[:-1]))
    table = LakeTable.create(tmp_path, SCHEMA, key=["id"], merger="groupwise", mergers=[Groupwise], buckets=1)
    put(table, 1, 2)
    Groupwise.answer = staticmethod(answer)
    with pytest.raises(MergerContractError, match=told) as caught:
        table.to_arrow()
    assert caught.value.facts["key"] == {"id": 1}, "the error names a key"
    assert "'groupwise'" in str(caught.value)


@pytest.mark.parametrize(
    ("method", "answer", "told"),
    [
        ("laws", None, r"laws\(\) must return a Laws"),
        ("traits", "fast", r"traits\(\) must return a Traits"),
        ("needs", ["id"], r"needs\(\) must return a frozenset"),
        ("needs", frozenset(), r"needs\(\) leaves out id, v"),
        ("needs", frozenset({"id", "v", "w"}), r"needs\(\) names w"),
        ("delete_marks", {"v": [1]}, r"delete_marks\(\) must give an Arrow array"),
    ],
)
def test_what_other_methods_may_not_give(method: str, answer: Any, told: str, tmp_path: Path) -> None:
    wrong = type("Wrong", (Own,), {"id": f"{ID}06", "name": "wrong", method: lambda self, *args, **kwargs: answer})
    with pytest.raises(MergerContractError, match=told):
        LakeTable.create(tmp_path / "t", SCHEMA, key=["id"], merger="wrong", mergers=[wrong])
    assert not (tmp_path / "t").exists()


def test_a_law_that_is_none_is_named() -> None:
    shape = TableShape(pa.schema([pa.field("id", pa.int64(), False), ("v", pa.int64())]), ("id",), ())
    with pytest.raises(InputError, match="no law 'idempotent'; the laws are associative, commutative"):
        find_counterexample(Own(), shape, "idempotent")  # type: ignore[arg-type]
    assert Own().laws(shape, full_frames=True) == Laws()
