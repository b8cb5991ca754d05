"""What a new user meets first: versions, stores that are not supported, labels of a report, partition columns."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import re
import runpy
import sys
import types
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakemerge
from lakemerge import DependencyMissingError, InputError, LakeTable, SchemaError, StoreError
from lakemerge.cli import main
from lakemerge.report import report_html
from lakemerge.report.svg import short_labels


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert lakemerge.__version__ == importlib.metadata.version("lakemerge")
    assert main(["--version"]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"lakemerge {lakemerge.__version__} (Python 3.")
    assert f"pyarrow {pa.__version__}" in told


CLOUDS = {
    "oss://b/t": (DependencyMissingError, "Alibaba Cloud OSS: .*pip install ossfs"),
    "oci://b@n/t": (DependencyMissingError, "pip install ocifs"),
    "wasbs://c@a.blob.core.windows.net/t": (InputError, "write abfss://CONTAINER@ACCOUNT"),
    "dbfs:/tables/t": (InputError, "write /dbfs/PATH"),
    "r2://b/t": (InputError, "write s3://BUCKET/PATH, with the store's endpoint_url"),
    "S3N://b/t": (InputError, "write s3://BUCKET/PATH"),
    "xyz://b/t": (InputError, "Protocol not known: xyz"),
    "memory://b/t": (StoreError, "it cannot be written"),
}


@pytest.mark.parametrize("url", CLOUDS)
def test_urls_of_other_stores_say_what_is_supported(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, told = CLOUDS[url]
    with pytest.raises(kind, match=f"{told}.*[Tt]oday tables are written on local disks, on S3") as caught:
        LakeTable.create(url, "id BIGINT", key=["id"])
    assert re.search(r"read on what fsspec knows; docs/guides/stores\.md lists the stores", str(caught.value))


def test_partition_columns_outside_of_the_key_are_explained(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"'day' must be a key column: .* would be in two partitions"):
        LakeTable.create(tmp_path / "t", "id BIGINT, day DATE", key=["id"], partition_by=["day"])
    assert not (tmp_path / "t").exists()


def test_labels_of_a_report_tell_buckets_apart(tmp_path: Path) -> None:
    schema = "order_id BIGINT, order_date DATE, region STRING"
    table = LakeTable.create(
        tmp_path / "t",
        schema,
        key=["order_id", "order_date", "region"],
        partition_by=["order_date", "region"],
        buckets=4,
    )
    regions = ["north-eastern territories and islands", "北海道と東北地方の島々と山々と川と海と空"]
    for region in regions:
        ids = list(range(40))
        days = [dt.date(2026, 3, 1)] * 40
        table.upsert(pa.table({"order_id": ids, "order_date": days, "region": [region] * 40}))
    page = report_html(table)
    found = re.findall(r'<text x="(\d+)"[^>]*class="label"[^>]*>([^<]*)<', page)
    labels = [label for _, label in found]
    assert len(set(labels)) == len(labels) == 8
    assert all(re.search(r"bucket [0-3]( #\d)?$", label) for label in labels)
    # A letter has at most 7 pixels, or 14 if it is a wide one; none is left of the plot.
    assert all(int(x) >= sum(14 if letter > "\u2e80" else 7 for letter in label) for x, label in found)


def test_pages_of_the_api_hold_no_marks_of_docstrings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook that mkdocs calls, without mkdocs. What mkdocs makes of a docstring's ``::`` before code is gone."""
    for name in ("mkdocs.config.defaults", "mkdocs.structure.files", "mkdocs.structure.pages"):
        module: Any = types.ModuleType(name)
        module.MkDocsConfig = module.File = module.Files = module.Page = object
        monkeypatch.setitem(sys.modules, name, module)
    path = Path(__file__).resolve().parents[3] / "scripts" / "docs" / "hooks.py"
    hooks = runpy.run_path(str(path))
    page = types.SimpleNamespace(file=types.SimpleNamespace(src_uri="reference/api-table.md"))
    given = "<p>A table.</p>\n<p>::</p>\n<pre>make</pre><p>In place of it::</p><pre>x::y</pre>" + "<p>word </p>" * 20
    made = hooks["on_page_content"](given, page, None, None)
    assert made.startswith("<p>A table.</p>\n\n<pre>make</pre><p>In place of it:</p><pre>x::y</pre>")


def test_long_labels_keep_both_ends() -> None:
    assert short_labels(["bucket 1", "day=1, bucket 2"]) == ["bucket 1", "day=1, bucket 2"]
    (label,) = short_labels([f"day={'x' * 60}, bucket 12"])
    assert label.startswith("day=x")
    assert label.endswith("x, bucket 12")
    assert len(label) <= 40
    same = [f"{'a' * 30}{part}{'b' * 30}" for part in "xy"]
    assert short_labels(same)[0].endswith("b #1")
    assert short_labels(same)[1].endswith("b #2")
