"""What is refused where PySpark is old, before anything is committed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest

from lakemerge import DependencyMissingError, LakeTable
from lakemerge.flows import auto_cdc, auto_cdc_from_snapshot
from lakemerge.spark.installed import can_write, check_installed, check_version


class DataFrame:
    """Looks like one of Spark."""


DataFrame.__module__ = "pyspark.sql.classic.dataframe"


class SparkSession:
    """So does this."""


WRITES: dict[str, Callable[[LakeTable, str], object]] = {
    "open": lambda _, path: LakeTable.open(path, spark=SparkSession()),  # type: ignore[arg-type]
    "create": lambda _, path: LakeTable.create(f"{path}x", "id BIGINT", key=["id"], spark=SparkSession()),  # type: ignore[arg-type]
    "upsert": lambda table, _: table.upsert(DataFrame()),
    "overwrite": lambda table, _: table.overwrite(DataFrame()),
    "delete": lambda table, _: table.delete(DataFrame()),
    "merge": lambda table, _: table.merge(DataFrame(), "target.id = source.id").whenMatchedDelete().execute(),
    "batch_writer": lambda table, _: table.batch_writer("app")(DataFrame(), 0),  # type: ignore[arg-type]
    "auto_cdc": lambda table, _: auto_cdc(source=DataFrame(), target=table, keys=["id"], sequence_by="id"),
    "snapshot": lambda table, _: auto_cdc_from_snapshot(source=DataFrame(), target=table, keys=["id"]),
}


@pytest.mark.parametrize("name", WRITES)
def test_spark_4_0_only_reads(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "t")
    table = LakeTable.create(path, "id BIGINT", key=["id"])
    table.upsert(pa.table({"id": [1]}))
    monkeypatch.setattr(pyspark, "__version__", "4.0.2")
    with pytest.raises(DependencyMissingError, match=r"needs PySpark 4\.1 or newer, .* this is 4\.0\.2\. On 4\.0"):
        WRITES[name](table, path)
    assert (table.version, LakeTable.exists(f"{path}x")) == (1, False)


@pytest.mark.parametrize(
    ("version", "reads", "writes"),
    [
        ("3.5.7", False, False),
        ("4.0.2", True, False),
        ("4.1.0", True, True),
        ("4.10.0.dev1", True, True),
        ("5.0.0", True, True),
    ],
)
def test_versions(version: str, reads: bool, writes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    assert can_write(version) == writes
    if reads:
        check_installed()
        return
    with pytest.raises(DependencyMissingError, match="too old"):
        check_version(version)
