"""``make interleavings``: goes through orders of events at length, and says what it covered and what it cut off.

It ends with an error if it finds a bad schedule, and prints the shortest one. ``--replay`` plays a schedule again.
"""

from __future__ import annotations

import argparse
import random
import sys

import pyarrow as pa

from tests.interleavings.explore import KINDS, Explorer, replayed
from tests.interleavings.operations import WORLDS, operations_of


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interleavings", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="of CPU, for all kinds together (%(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of what comes first")
    parser.add_argument("--kind", action="append", choices=KINDS, help="only this kind; may be repeated")
    parser.add_argument("--world", action="append", choices=WORLDS, help="only tables of this kind; may be repeated")
    parser.add_argument("--operation", action="append", help="only this operation; may be repeated")
    parser.add_argument("--replay", metavar="SCHEDULE", help="such as 'filled: append beside compaction: A3 B A'")
    given = parser.parse_args()
    pa.set_cpu_count(1)
    if given.replay:
        verdict = replayed(given.replay)
        for tag, outcome in verdict.outcomes.items():
            print(f"{tag}: {outcome}")  # noqa: T201
            for number, touch in enumerate(outcome.touches, start=1):
                print(f"   {number} {touch.method} {', '.join(touch.paths)[:150]}")  # noqa: T201
        print("\n".join(verdict.problems) or "nothing is wrong")  # noqa: T201
        return int(bool(verdict.problems))
    worlds = [world for name, world in WORLDS.items() if operations_of(name) and name in (given.world or WORLDS)]
    kinds = given.kind or list(KINDS)
    explorer = Explorer(tell=lambda text: print(text, flush=True))  # noqa: T201
    share = given.seconds / len(kinds) / sum(len(operations_of(world.name)) for world in worlds)
    print(f"seed {given.seed}")  # noqa: T201
    for kind in kinds:
        for world in worlds:
            operations = [op for op in operations_of(world.name) if op.name in (given.operation or [op.name])]
            seconds = share * len(operations_of(world.name))
            explorer.explore(f"{world.name}, {kind}", KINDS[kind](world, operations), seconds=seconds, seed=given.seed)
    print(explorer.coverage)  # noqa: T201
    return int(bool(explorer.coverage.bad))


if __name__ == "__main__":
    sys.exit(main())
