"""Builds what a release publishes, into a folder: ``python -m scripts.release FOLDER``.

1. A wheel and a source archive, of what is committed and of nothing else. They are built twice, and have to be the same
   bytes.
2. The wheel is installed into fresh environments: without an extra, with each, and beside pandas 3. There it does what
   a new user does first (``scripts/smoke.py``), without Java.
3. A list of the packages that all extras bring (an SBOM, in the format of CycloneDX), and a file of hashes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SBOM = "cyclonedx-bom==7.5.0"
FOR_USERS = ("cli", "spark", "s3", "gcs", "azure", "query", "ingest", "testing", "sketches", "openlineage")
"""The extras of users. ``test`` and ``bench`` are for work on LakeMerge itself."""
FRAMES = ("pandas>=3", "polars")
"""What users have beside it, and no extra brings."""
ONLY_FOR_EXTRAS = {"adlfs", "datasketches", "duckdb", "fastavro", "gcsfs", "pandas", "pyspark", "rich", "s3fs", "typer"}
"""What must not be installed without an extra: no Spark, no library of a cloud."""


def run(*command: str | Path, cwd: Path = ROOT, environment: dict[str, str] | None = None) -> str:
    """What a command prints. If it fails, its output ends this process."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, cwd=cwd, env=environment, check=False)  # noqa: S603 - git, pip and Python
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def build(into: Path, commit: str = "HEAD") -> list[Path]:
    """Build the wheel and the source archive of a commit. Their times are the commit's, so that the bytes are the same
    wherever and whenever they are built."""
    time = run("git", "log", "-1", "--format=%ct", commit).strip()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source")
        source.mkdir()
        archive = Path(folder, "source.tar")
        run("git", "archive", "--output", archive, commit)
        run("tar", "-xf", archive, "-C", source)
        environment = os.environ | {"SOURCE_DATE_EPOCH": time}
        command = (sys.executable, "-m", "build", "--no-isolation", "--outdir", into, source)
        run(*command, cwd=source, environment=environment)
    return sorted(into.iterdir())


def digests(files: list[Path]) -> dict[str, str]:
    """SHA-256 by name of file."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def install(environment: Path, *requirements: str) -> Path:
    """Make an environment with these packages. Returns its Python."""
    run(sys.executable, "-m", "venv", "--clear", environment)
    python = environment / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements)
    return python


def try_out(python: Path, *chosen: str) -> None:
    """What a new user does first, with nothing on the path but this environment, so without Java."""
    outside = {"PATH": str(python.parent), "HOME": os.environ.get("HOME", "/")}
    with tempfile.TemporaryDirectory() as folder:
        run(python, ROOT / "scripts" / "smoke.py", *chosen, cwd=Path(folder), environment=outside)


def installed(python: Path) -> set[str]:
    """Names of the packages in an environment."""
    return {found["name"].lower() for found in json.loads(run(python, "-m", "pip", "list", "--format", "json"))}


def check_extras(wheel: Path, folder: Path) -> None:
    """Install the wheel without and with each extra, and try it out."""
    for extra in (None, *FOR_USERS):
        if extra == "spark":
            continue  # `make smoke` and `make matrix` install it, with a Java
        python = install(folder, str(wheel) if extra is None else f"{wheel}[{extra}]")
        if extra is None and (extras := installed(python) & ONLY_FOR_EXTRAS):
            sys.exit(f"The wheel brings {', '.join(sorted(extras))}, which only extras may.")
        try_out(python, *([] if extra is None else ["--extra", extra]))
        say(f"{'without an extra' if extra is None else extra}: fine")
    try_out(install(folder, str(wheel), *FRAMES), "--frames")
    say(f"with {' and '.join(FRAMES)}: fine")


def write_sbom(wheel: Path, out: Path, folder: Path, time: str) -> None:
    """List the packages that the wheel brings with all extras of users. The same packages give the same bytes."""
    python = install(folder / "all", f"{wheel}[{','.join(FOR_USERS)}]")
    run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "pip", "setuptools")
    tool = install(folder / "tool", SBOM).parent / "cyclonedx-py"
    options = ("--mc-type", "library", "--output-reproducible", "--of", "JSON", "--pyproject", ROOT / "pyproject.toml")
    run(tool, "environment", *options, "-o", out, python, environment=os.environ | {"SOURCE_DATE_EPOCH": time})


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the files go; it must be empty or missing")
    out: Path = parser.parse_args().folder.resolve()
    if run("git", "status", "--porcelain").strip():
        sys.exit("Something is not committed. A release is built from a commit: commit or remove it first.")
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        sys.exit(f"{out} is not empty. Remove what is there, so that it holds this release alone.")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    time = run("git", "log", "-1", "--format=%ct").strip()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "again").mkdir()
        files = build(out)
        if digests(files) != digests(build(work / "again")):
            sys.exit("Two builds of one commit differ. The release would not be reproducible.")
        say(f"built twice, the same bytes: {', '.join(path.name for path in files)}")
        [wheel] = (path for path in files if path.suffix == ".whl")
        check_extras(wheel, work / "environment")
        sbom = out / f"lakemerge-{version}.cdx.json"
        write_sbom(wheel, sbom, work, time)
        say(f"packages of all extras: {sbom.name}")
    lines = (f"{digest}  {name}\n" for name, digest in digests([*files, sbom]).items())
    (out / "SHA256SUMS").write_text("".join(lines))
    say(f"{out}: a release of version {version}")


if __name__ == "__main__":
    main()
