"""Makes the commits of a changed log a chain again, so that tests reach what lies behind the check of the chain."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

__all__ = ["relink"]

_COMMIT = re.compile(r"\d{20}\.json")


def relink(folder: Path) -> None:
    """Let each commit of the table say what its file holds now, as docs/table-format.md 4.75 describes it. Commits that
    do so already stay as they are. The checkpoints, which name the digests of commits, are deleted."""
    log = folder / "_delta_log"
    for file in log.glob("*checkpoint*"):
        file.unlink()
    previous: str | None = None
    for commit in sorted(file for file in log.iterdir() if _COMMIT.fullmatch(file.name)):
        first, newline, rest = commit.read_bytes().partition(b"\n")
        try:
            line = json.loads(first)
            said = {"lines": rest.count(b"\n"), "digest": hashlib.sha256(rest).hexdigest()}
            said |= {} if previous is None else {"previous": previous}
            if line["commitInfo"].get("lakemerge.chain") != said:
                line["commitInfo"]["lakemerge.chain"] = said
                commit.write_bytes(json.dumps(line).encode() + newline + rest)
        except (ValueError, KeyError, TypeError, AttributeError):
            pass  # the change hit this line
        previous = hashlib.sha256(commit.read_bytes()).hexdigest()
