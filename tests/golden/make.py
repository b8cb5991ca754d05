"""Writes the golden tables: ``python -m tests.golden.make``, from the root of the repository.

A golden table stands for the tables that users have. One that is there is never written again; a new
one is written once, when a merger, a configuration or a part of the format is new. Beside each table
stands ``expected.json``: what it is, and its rows at every version that a step made, from the
plain-Python model or written by hand, in the spelling of the conformance cases. Where a version has other columns than
the last one, ``columns`` has them.
"""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from lakemerge import LakeTable
from tests.conformance.model_mergers import ALL_MERGERS
from tests.conformance.values import arrow_schema, frame_of, from_json
from tests.golden.cases import CASES, Alter, Case, Compact, Write
from tests.golden.features import FEATURES, Feature, merge_source
from tests.model import ModelTable

__all__ = ["SOURCE", "make", "make_feature"]

FOLDER = Path(__file__).parent
SOURCE = FOLDER / "merge-source"
"""Tables, a merge source over them, and its state."""


def make(case: Case, folder: Path) -> None:
    """Write table and expected rows of one case into a folder that is not there yet."""
    table = LakeTable.create(
        folder / "table",
        case.ddl,
        key=case.key,
        ordering=case.ordering,
        merger=case.merger,
        options=case.options,
        partition_by=case.partition_by,
        buckets=case.buckets,
        properties={"delta.checkpointInterval": "5"},
        settings=case.settings,
    )
    model = ModelTable(
        arrow_schema(case.ddl),
        key=case.key,
        ordering=case.ordering,
        merger=case.model_merger or case.merger,
        options={} if case.model_merger else case.options,
        mergers=ALL_MERGERS,
    )
    versions: dict[str, list[list[Any]]] = {}
    ddl, merger, options = case.ddl, case.merger, case.options
    for number, step in enumerate(case.steps):
        match step:
            case Write():
                frame = frame_of(table.schema, step.columns, [row[: len(step.columns)] for row in step.rows])
                kinds = [row[-1] if len(row) > len(step.columns) else "+U" for row in step.rows]
                table.upsert(frame.append_column("kind", pa.array(kinds)), kind_column="kind")
                model.write(step.columns, frame.to_pylist(), kinds)
            case Compact():
                table.compact(minor=step.minor)
            case Alter():
                table.alter(add_columns=step.add_columns, merger=step.merger, options=step.options)
                if step.add_columns is not None:
                    ddl += ", " + step.add_columns
                    model.add_columns(list(arrow_schema(step.add_columns)))
                if step.merger is not None:
                    merger, options = step.merger, step.options or {}
                    model.change_merger(merger, options)
        rows = case.by_hand[number] if case.by_hand else _rows(model)
        versions[str(table.version)] = [list(row) for row in rows]
    told = {
        "ddl": ddl,
        "key": case.key,
        "ordering": case.ordering,
        "partition_by": case.partition_by,
        "merger": merger,
        "options": options,
        "decode": case.decode,
    }
    _tell(folder, told, versions)


def make_feature(feature: Feature, folder: Path) -> None:
    """The same for a case of :mod:`tests.golden.features`."""
    path = folder / "table"
    versions: dict[str, Sequence[Sequence[Any]]] = {}
    columns: dict[str, str] = {}
    rows: Sequence[Sequence[Any]]
    ddl, rows = feature.began or feature.ddl, ()
    feature.make(path)
    for step in feature.steps:
        step.do(path)
        ddl, rows = step.ddl or ddl, rows if step.rows is None else step.rows
        version = str(LakeTable.open(path).version)
        if rows:
            versions[version] = rows
            if ddl != feature.ddl:
                columns[version] = ddl
    names = ("ddl", "key", "ordering", "partition_by", "merger", "options")
    told = {name: getattr(feature, name) for name in names} | {"decode": {}, "columns": columns}
    _tell(folder, told, versions)


def _tell(folder: Path, told: Mapping[str, Any], versions: Mapping[str, Sequence[Sequence[Any]]]) -> None:
    head = [f" {_text(name)}: {_text(value)}," for name, value in told.items()]
    blocks = [f"  {_text(v)}: [" + ",".join(f"\n   {_text(row)}" for row in rows) + "]" for v, rows in versions.items()]
    text = "\n".join(["{", *head, ' "versions": {', ",\n".join(blocks), " }", "}"])
    assert json.loads(text) == json.loads(_text({**told, "versions": versions}))
    (folder / "expected.json").write_text(text + "\n")


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _rows(model: ModelTable) -> list[list[Any]]:
    kinds = [field.type for field in model.schema]
    rows = [[to_json(row[f.name], f.type) for f in model.schema] for row in model.rows()]
    spelt = [[from_json(v, k) for v, k in zip(row, kinds, strict=True)] for row in rows]
    assert spelt == [list(row.values()) for row in model.rows()], "the spelling loses something"
    return rows


def to_json(value: Any, kind: pa.DataType) -> Any:
    """The inverse of ``from_json`` of the conformance cases."""
    if value is None:
        return None
    if isinstance(kind, pa.StructType):
        return [to_json(value[kind.field(i).name], kind.field(i).type) for i in range(kind.num_fields)]
    if isinstance(kind, pa.MapType):
        return {"map": [[to_json(k, kind.key_type), to_json(v, kind.item_type)] for k, v in value]}
    if isinstance(kind, pa.ListType):
        return [to_json(item, kind.value_type) for item in value]
    if pa.types.is_binary(kind):
        return {"b64": base64.b64encode(value).decode()}
    if pa.types.is_decimal(kind):
        return str(value)
    return value.isoformat() if pa.types.is_temporal(kind) else value


def main() -> None:
    for case in CASES:
        if not (FOLDER / case.name).exists():
            make(case, FOLDER / case.name)
    for feature in FEATURES:
        if not (FOLDER / feature.name).exists():
            _made_elsewhere(FOLDER / feature.name, partial(make_feature, feature))
    if not SOURCE.exists():
        _made_elsewhere(SOURCE, lambda folder: merge_source(folder / "table"))


def _made_elsewhere(into: Path, made: Callable[[Path], object]) -> None:
    """Some tables store the paths of what is beside them. Made in a temporary folder, they store none of a checkout."""
    with TemporaryDirectory() as folder:
        made(Path(folder) / into.name)
        shutil.copytree(Path(folder) / into.name, into)


if __name__ == "__main__":
    main()
