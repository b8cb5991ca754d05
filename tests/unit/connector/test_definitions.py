"""Table properties and ALTER TABLE as arguments of create and alter."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from lakemerge import InputError, SchemaError
from lakemerge.connector.definitions import altered, created

SCHEMA = '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}}]}'


def made(**properties: str) -> dict[str, Any]:
    return created({"schema": SCHEMA, "partitioning": [], "properties": properties})


def test_properties_that_define_the_table() -> None:
    found = made(
        **{"key": "id, `a,b` , `c``d`", "merger.options": '{"aggregates": {}}'},
        ordering="at", merger="aggregate", buckets="4", comment="all", owner="me", provider="LakeMerge", team="mine",
    )  # fmt: skip
    assert found.pop("schema") == SCHEMA
    assert found == {
        "key": ["id", "a,b", "c`d"], "ordering": ["at"], "merger": "aggregate", "options": {"aggregates": {}},
        "partition_by": [], "constraints": [], "buckets": 4, "description": "all", "properties": {"team": "mine"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({}, "a table needs a key: .*TBLPROPERTIES"),
        ({"key": "id", "provider": "delta"}, "not USING delta"),
        ({"key": "id", "location": "/x"}, "leave out LOCATION"),
        ({"key": "id", "option.path": "/x"}, "use TBLPROPERTIES"),
        ({"key": "id", "merger.options": "{"}, "must be JSON"),
        ({"key": "id", "buckets": "many"}, "'buckets' must be a number"),
        ({"key": "id,,at"}, "no list of column names"),
    ],
)
def test_what_cannot_define_a_table(properties: dict[str, str], message: str) -> None:
    with pytest.raises((InputError, SchemaError), match=message):
        made(**properties)


def change(*changes: dict[str, Any]) -> dict[str, Any]:
    return altered(changes, pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())]))


def test_changes_of_columns_go_into_one_call() -> None:
    new = {"change": "add column", "column": ["n"], "type": '"integer"', "nullable": True, "comment": "it's"}
    assert change({**new, "after": "ID"}, {"change": "comment", "column": ["v"], "comment": "x"}) == {
        "add_columns": "`n` INT COMMENT 'it\\'s'", "comments": {"`v`": "x"}, "order": ["id", "n", "v"],
    }  # fmt: skip
    assert change({**new, "comment": None}) == {"add_columns": "`n` INT"}
    assert change({"change": "position", "column": ["v"], "first": True}) == {"order": ["v", "id"]}
    assert change({"change": "type", "column": ["s", "n"], "type": '"long"'}) == {"widen": {"`s`.`n`": pa.int64()}}
    assert change({"change": "nullability", "column": ["v"], "nullable": True}) == {"nullable": ["`v`"]}
    assert change({"change": "nullability", "column": ["id"], "nullable": False}) == {}, "it is so already"


def test_changes_of_properties() -> None:
    def put(name: str, value: str) -> dict[str, str]:
        return {"change": "set property", "property": name, "value": value}

    found = change(put("merger", "first-row"), put("comment", "new"), {"change": "remove property", "property": "x"})
    assert found == {"merger": "first-row", "description": "new", "properties": {"x": None}}
    with pytest.raises(SchemaError, match="'key' cannot be changed"):
        change(put("key", "v"))
    with pytest.raises(SchemaError, match=r"'buckets' cannot be changed; use LakeTable\.rescale"):
        change(put("buckets", "8"))


def test_columns_are_renamed_and_dropped() -> None:
    assert change({"change": "rename column", "column": ["v"], "to": "w x"}) == {"rename_columns": {"`v`": "w x"}}
    assert change({"change": "drop column", "column": ["v"]}) == {"drop_columns": ["`v`"]}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"change": "drop column", "column": ["s", "v"]}, "DROP COLUMN `s`.`v`"),
        ({"change": "rename column", "column": ["s", "v"], "to": "w"}, "RENAME COLUMN `s`.`v`"),
        ({"change": "nullability", "column": ["v"], "nullable": False}, "SET NOT NULL of `v`"),
        ({"change": "add column", "column": ["n"], "type": '"integer"', "nullable": False}, "NOT NULL"),
        ({"change": "position", "column": ["v"], "after": "x"}, "no column 'x'"),
        ({"change": "position", "column": ["s", "v"], "first": True}, "stay in their order"),
    ],
)
def test_changes_that_are_refused(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        change(asked)
