"""Prints, as constraints for pip, the oldest versions that ``pyproject.toml`` allows of what the product imports."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("cli", "ingest", "openlineage", "query", "sketches", "spark", "testing")
"""The extras of the product, without those of object stores: pip takes too long to find the oldest s3fs that goes with
moto, and the others need as new an fsspec."""


def constraints() -> list[str]:
    """A line ``name==version`` for each package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = project["dependencies"] + [line for extra in EXTRAS for line in project["optional-dependencies"][extra]]
    return [f"{name}=={version}" for name, version in sorted(map(_oldest, lines))]


def _oldest(line: str) -> tuple[str, str]:
    asked = Requirement(line)
    [bound] = [part.version for part in asked.specifier if part.operator == ">="]
    return asked.name, bound


if __name__ == "__main__":
    sys.stdout.write("\n".join(constraints()) + "\n")
