"""Builds the jar with the catalog from the sources in ``connector/``: ``python -m scripts.build_connector``.

The same sources give the same bytes. The jar names a digest of its sources, so that a test without a JDK sees a jar
that was not built again.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "connector" / "src"
JAR = ROOT / "lakemerge" / "connector" / "lakemerge-spark.jar"
VERSION = "lakemerge/spark/version"
_TIME = (1980, 1, 1, 0, 0, 0)
_LICENSES = ("LICENSE", "NOTICE")
_SPELLINGS = ("LAKEMERGE", "LakeMerge", "Lakemerge")
"""How people write the name of the data source besides ``lakemerge``. Spark looks for the package of that name."""


def sources() -> list[Path]:
    return sorted(SOURCES.rglob("*.java"))


def digest() -> str:
    """A digest of all sources, with their names."""
    found = hashlib.sha256()
    for path in sources():
        found.update(f"{path.relative_to(SOURCES).as_posix()}\n".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def compiled(into: Path, jars: Path) -> None:
    """Compile all sources against the jars of a Spark. Each folder in ``into`` has classes."""
    main = into / "main"
    _compile(sources(), [jars / "*"], main)
    for number, spelling in enumerate(_SPELLINGS):
        # In folders of their own: some file systems take the packages for one.
        source = into / f"source{number}" / "DefaultSource.java"
        source.parent.mkdir(parents=True)
        source.write_text(
            f"package {spelling};\n\npublic final class DefaultSource extends lakemerge.DefaultSource {{}}\n"
        )
        _compile([source], [jars / "*", main], into / f"classes{number}")


def _compile(files: list[Path], classpath: list[Path], into: Path) -> None:
    into.mkdir(parents=True)
    command = [
        "javac",
        "--release",
        "17",
        "-Xlint:none",
        "-nowarn",
        "-g:source,lines",
        "-cp",
        ":".join(map(str, classpath)),
        "-d",
        str(into),
    ]
    subprocess.run([*command, *map(str, files)], check=True)  # noqa: S603 - the JDK's compiler


def pack(classes: Path, jar: Path) -> None:
    entries = {"META-INF/MANIFEST.MF": b"Manifest-Version: 1.0\r\nImplementation-Title: LakeMerge for Spark\r\n\r\n"}
    entries |= {f"META-INF/{name}": (ROOT / name).read_bytes() for name in _LICENSES if (ROOT / name).exists()}
    entries[VERSION] = digest().encode()
    found = {path.relative_to(top).as_posix(): path for top in classes.iterdir() for path in top.rglob("*.class")}
    entries |= {name: found[name].read_bytes() for name in sorted(found)}
    with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in entries.items():
            info = zipfile.ZipInfo(name, _TIME)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            packed.writestr(info, data)


def spark_jars() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent / "jars"


def main() -> None:
    jars = Path(sys.argv[1]) if len(sys.argv) > 1 else spark_jars()
    with tempfile.TemporaryDirectory() as folder:
        compiled(Path(folder), jars)
        pack(Path(folder), JAR)
    sys.stdout.write(f"{JAR.relative_to(ROOT)}: {JAR.stat().st_size:,} bytes, of sources {digest()}\n")


if __name__ == "__main__":
    main()
