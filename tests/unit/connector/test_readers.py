"""The builds of Spark whose Parquet reader the native scan knows."""

from __future__ import annotations

from scripts import build_connector, reader_digests


def test_the_installed_spark_is_known() -> None:
    found = reader_digests.digest_of(build_connector.spark_jars(), reader_digests.classes())
    assert found in reader_digests.known()


def test_another_class_is_another_build() -> None:
    classes, jars = reader_digests.classes(), build_connector.spark_jars()
    assert len(classes) > 20
    assert reader_digests.digest_of(jars, classes[1:]) != reader_digests.digest_of(jars, classes)
