"""The most memory that a process and its descendants hold at one time, from Linux's /proc."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

__all__ = ["Peak", "measured", "tree_bytes"]

_PERIOD_S = 0.5


class Peak:
    """``parts`` is the largest sample so far, by who held it; empty where the system tells nothing."""

    def __init__(self) -> None:
        self.parts: Mapping[str, int] = {}

    @property
    def bytes(self) -> int | None:
        return sum(self.parts.values()) or None

    def sample(self) -> None:
        found = tree_bytes(os.getpid())
        if found is not None and sum(found.values()) > sum(self.parts.values()):
            self.parts = found


@contextmanager
def measured(period_s: float = _PERIOD_S) -> Iterator[Peak]:
    """Sample this process and its descendants, at the start, at the end and every ``period_s`` between."""
    peak, ended = Peak(), threading.Event()

    def watch() -> None:
        while not ended.wait(period_s):
            peak.sample()

    peak.sample()
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        ended.set()
        watcher.join()
        peak.sample()


def tree_bytes(root: int, proc: Path = Path("/proc")) -> Mapping[str, int] | None:
    """Resident bytes of a process (``driver``) and of its descendants: ``Java``, and all others as ``workers``.

    Pages that two of them share count for both (resident sizes cost nothing to ask for, unlike proportional ones). A
    child of the same virtual size counts nothing: it was forked this moment, by a JVM that is about to start a program,
    and is its parent still."""
    children: dict[int, list[int]] = defaultdict(list)
    resident: dict[int, int] = {}
    virtual: dict[int, int] = {}
    names: dict[int, str] = {}
    for folder in proc.glob("[0-9]*"):
        try:
            status = (folder / "status").read_text()
        except OSError:  # it ended
            continue
        values = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        pid = int(folder.name)
        children[int(values["PPid"])].append(pid)
        names[pid] = values["Name"].strip()
        resident[pid], virtual[pid] = (int(values.get(name, "0 kB").split()[0]) * 1024 for name in ("VmRSS", "VmSize"))
    if root not in resident:
        return None
    found, left = {"driver": resident[root], "Java": 0, "workers": 0}, [root]
    while left:
        pid = left.pop()
        for child in children[pid]:
            if virtual[child] != virtual[pid]:
                found["Java" if names[child] == "java" else "workers"] += resident[child]
        left += children[pid]
    return found
