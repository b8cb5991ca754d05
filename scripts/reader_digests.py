"""Prints the digest by which the native scan knows a build of Spark: ``python -m scripts.reader_digests [JARS]``.

Before a digest is added to ``KnownReaders.java``, ``tests/spark/read/test_native.py`` has to pass with that Spark.
"""

from __future__ import annotations

import hashlib
import re
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from scripts.build_connector import SOURCES, spark_jars

__all__ = ["classes", "digest_of", "known"]

_SOURCE = SOURCES / "lakemerge" / "spark" / "KnownReaders.java"


def classes() -> list[str]:
    """The classes that the scan relies on."""
    [listed] = re.findall(r"CLASSES = List\.of\((.*?)\);", _SOURCE.read_text(), re.DOTALL)
    return re.findall(r'"([^"]+)"', listed)


def known() -> dict[str, str]:
    """The digests that are listed, and versions of pyspark that have them."""
    [listed] = re.findall(r"KNOWN = Map\.of\((.*?)\);", _SOURCE.read_text(), re.DOTALL)
    return dict(re.findall(r'"(\w+)", "([^"]+)"', listed))


def digest_of(jars: Path, names: Sequence[str]) -> str:
    found: dict[str, bytes] = {}
    for path in sorted(jars.glob("*.jar")):
        if path.name.startswith(("spark-", "parquet-")):
            with zipfile.ZipFile(path) as jar:
                entries = set(jar.namelist())
                found |= {name: jar.read(f"{name}.class") for name in names if f"{name}.class" in entries}
    if missing := [name for name in names if name not in found]:
        raise SystemExit(f"{jars} lacks {missing}")
    return hashlib.sha256(b"".join(found[name] for name in names)).hexdigest()[:32]


def main() -> None:
    jars = Path(sys.argv[1]) if len(sys.argv) > 1 else spark_jars()
    sys.stdout.write(f"{digest_of(jars, classes())}\n")


if __name__ == "__main__":
    main()
