"""Procedures of SQL, as the jar calls them."""

from __future__ import annotations

import datetime as dt
import decimal
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

from lakemerge import InputError, LakeTable
from lakemerge.connector.procedures import called

KEYS: dict[str, tuple[object, object]] = {
    "BIGINT": (7, 7),
    "STRING": ("ann", "ann"),
    "BOOLEAN": (True, True),
    "DATE": ("1931-07-13", dt.date(1931, 7, 13)),
    "TIMESTAMP": ("1931-07-13T03:31:13.5Z", dt.datetime(1931, 7, 13, 3, 31, 13, 500_000, dt.UTC)),
    "DECIMAL(20,3)": ("7313131313.131", decimal.Decimal("7313131313.131")),
}


def forgot(table: LakeTable, keys: object, **arguments: Any) -> dict[str, str | None]:
    text = keys if isinstance(keys, str) else orjson.dumps(keys).decode()
    return {str(name): value for name, value in called("forget", table, {"keys": text, **arguments})}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_each_type_are_erased(kind: str, tmp_path: Path) -> None:
    written, value = KEYS[kind]
    table = LakeTable.create(tmp_path, f"k {kind}, v STRING", key=["k"], buckets=1)
    table.upsert(pa.table({"k": pa.array([value], table.schema.field("k").type), "v": ["x"]}))
    result = forgot(table, [{"K": written}])
    assert result["keys"] == "1, of which 1 had a row"
    assert (result["state"] or "").startswith("waiting until")
    assert result["salt"]
    assert table.to_arrow().num_rows == 0


def test_a_salt_that_is_given_is_not_told(tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path, "a BIGINT, b STRING", key=["a", "b"], buckets=1)
    table.upsert(pa.table({"a": [1, 1], "b": ["x", "y"]}))
    result = forgot(table, [{"b": "x", "a": 1}], salt="grain", drop_history=True)
    assert "salt" not in result
    assert result["digest"] == table.forget([{"a": 1, "b": "x"}], salt="grain").digest
    assert table.to_arrow().to_pylist() == [{"a": 1, "b": "y"}]


@pytest.mark.parametrize(
    "keys",
    [
        "no JSON",
        {"a": 1},
        [1],
        [{"a": 1}],
        [{"a": 1, "b": "x", "c": 2}],
        [{"a": 1, "A": 2, "b": "x"}],
        [{"a": "one", "b": "x"}],
        [{"a": 1, "b": 7}],
    ],
    ids=str,
)
def test_what_are_no_keys(keys: object, tmp_path: Path) -> None:
    """The error does not show them."""
    table = LakeTable.create(tmp_path, "a BIGINT, b STRING", key=["a", "b"], buckets=1)
    with pytest.raises(InputError, match=r"a list in JSON, each with all columns of the key|a value of the key column"):
        forgot(table, keys)
    assert table.version == 0


def test_texts_that_are_no_dates_and_keys_that_json_lacks(tmp_path: Path) -> None:
    dates = LakeTable.create(tmp_path / "dates", "k DATE", key=["k"], buckets=1)
    with pytest.raises(InputError, match=r"a value of the key column 'k' is not a text such as '2026-11-01'") as caught:
        forgot(dates, [{"k": "the thirteenth"}])
    assert "thirteenth" not in str(caught.value)
    binary = LakeTable.create(tmp_path / "binary", "k BINARY", key=["k"], buckets=1)
    with pytest.raises(InputError, match=r"'k' of the key is BINARY.*LakeTable\.forget"):
        forgot(binary, [{"k": "x"}])
