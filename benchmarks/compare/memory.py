"""The most memory that a process and its descendants hold at one time, from Linux's /proc."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["Peak", "measured", "tree_bytes"]

_PERIOD_S = 0.5


class Peak:
    """``bytes`` is the largest sample so far; ``None`` where the system tells nothing."""

    def __init__(self) -> None:
        self.bytes: int | None = None

    def sample(self) -> None:
        found = tree_bytes(os.getpid())
        if found is not None:
            self.bytes = max(found, self.bytes or 0)


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


def tree_bytes(root: int, proc: Path = Path("/proc")) -> int | None:
    """Resident bytes of a process and its descendants. Pages that two of them share count for both (resident
    sizes cost nothing to ask for, unlike proportional ones), but a child of the same virtual size counts
    nothing: it was forked this moment, by a JVM that is about to start a program, and is its parent still."""
    children: dict[int, list[int]] = defaultdict(list)
    resident: dict[int, int] = {}
    virtual: dict[int, int] = {}
    for folder in proc.glob("[0-9]*"):
        try:
            status = (folder / "status").read_text()
        except OSError:  # it ended
            continue
        values = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        pid = int(folder.name)
        children[int(values["PPid"])].append(pid)
        resident[pid], virtual[pid] = (int(values.get(name, "0 kB").split()[0]) * 1024 for name in ("VmRSS", "VmSize"))
    if root not in resident:
        return None
    total, left = resident[root], [root]
    while left:
        pid = left.pop()
        total += sum(resident[child] for child in children[pid] if virtual[child] != virtual[pid])
        left += children[pid]
    return total
