"""``lakemerge demo``: what a table does, shown on made-up orders. Needs neither Spark nor Java.

Each answer is compared with one that :mod:`lakemerge.cli.demo_orders` computes with dictionaries.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer

from lakemerge.cli import demo_orders as orders
from lakemerge.cli.arguments import storage_options as parsed_options
from lakemerge.cli.common import StorageOption
from lakemerge.cli.output import JsonOption, document, say_lines
from lakemerge.cli.tables import shown_rows
from lakemerge.errors import LakeMergeError
from lakemerge.results.display import readable_bytes
from lakemerge.table.table import LakeTable
from mergers.wording import printable

__all__ = ["demo"]

_SHOWN = 10

Teller = Callable[[str, pa.Table | None], None]
"""Shows a text, and a small table below it."""


def demo(
    path: Annotated[
        str | None, typer.Argument(help="Folder or URL of the table to make; by default a new temporary folder.")
    ] = None,
    storage_options: StorageOption = None,
    json: JsonOption = False,
) -> None:
    """Show in ten seconds what a table does, on made-up orders with late and repeated events. Needs no Spark."""
    place = path or str(Path(tempfile.mkdtemp(prefix="lakemerge-demo-")) / "orders")
    table = LakeTable.create(
        place,
        orders.DDL,
        key=["order_id"],
        ordering=["updated_at"],
        buckets=4,
        storage_options=parsed_options(storage_options or ()),
    )
    tour = _Tour(table, _silent if json else _told)
    for step in (tour.load, tour.upsert, tour.read, tour.explain, tour.changes, tour.compact):
        step()
    if json:
        document({"table": table.url, "version": table.version, "checked": tour.checked, "steps": tour.steps})
    else:
        _told(f"Each of the {tour.checked} answers was compared with a plain computation, and is right.", None)
        say_lines(_next_steps(printable(place)))


class _Tour:
    def __init__(self, table: LakeTable, tell: Teller) -> None:
        self.table = table
        self.tell = tell
        self.checked = 0
        self.steps: list[dict[str, Any]] = []
        self._states: dict[int, dict[int, orders.Order]] = {}
        """By version: the newest event of each order."""
        self._loaded = 0

    def load(self) -> None:
        events = orders.first_load()
        result = self.table.upsert(orders.frame(events), kind_column=orders.KIND)
        self._loaded = result.version
        self._states[result.version] = orders.merged(events)
        self._note("load", version=result.version, rows=result.rows, bytes=result.bytes)
        self.tell(
            f"1. A table of orders: key order_id, ordering updated_at, merger event-time (the newest event wins).\n"
            f"   The first write loads {result.rows:,} orders as base files of {readable_bytes(result.bytes)}.",
            None,
        )

    def upsert(self) -> None:
        rows = []
        for number in range(1, orders.BATCHES + 1):
            events = orders.batch(number)
            before = self._states[self.table.version]
            late = sum(event.updated_at < before[event.order_id].updated_at for event in events)
            twice = len(events) - len(set(events))
            result = self.table.upsert(orders.frame(events), kind_column=orders.KIND)
            self._states[result.version] = orders.merged(events, before)
            rows.append(
                {
                    "version": result.version,
                    "events": result.rows,
                    "late": late,
                    "repeated": twice,
                    "cancelled": sum(event.kind == "-D" for event in events),
                    "log files": result.files - 1,
                    "bytes": result.bytes,
                }
            )
        self._note("upsert", commits=rows)
        self.tell(
            "2. Four upserts. An upsert reads nothing: it appends its events as a log and commits once. "
            "Some events\n   are late, some were sent twice, some cancel their order.",
            pa.Table.from_pylist(rows),
        )

    def read(self) -> None:
        rows = self.table.to_arrow()
        expected = self._rows_now()
        self._check("the merged rows", _sorted_rows(rows), expected)
        sums = rows.group_by("state", use_threads=False).aggregate([("order_id", "count"), ("amount", "sum")])
        sums = sums.sort_by("state").rename_columns(["state", "orders", "amount"])
        counted, amounts = Counter(row[2] for row in expected), dict.fromkeys((row[2] for row in expected), Decimal(0))
        for row in expected:
            amounts[row[2]] += row[3]
        plain = [{"state": s, "orders": counted[s], "amount": amounts[s]} for s in sorted(counted)]
        self._check("orders by state", sums.to_pylist(), plain)
        self._note("read", rows=rows.num_rows, by_state=sums.to_pylist())
        self.tell(
            f"3. A read merges base files and logs: {rows.num_rows:,} orders, each as its newest event says, "
            "and cancelled\n   ones are gone.",
            sums,
        )

    def explain(self) -> None:
        found = self.table.explain({"order_id": orders.STORY}, since=0)
        story = [
            event
            for events in (orders.first_load(), *(orders.batch(number) for number in range(1, orders.BATCHES + 1)))
            for event in events
            if event.order_id == orders.STORY
        ]
        newest, verdicts = None, []
        for event in story:
            wins = newest is None or event.updated_at >= newest.updated_at
            verdicts.append("ignored" if not wins else "unchanged" if event == newest else "applied")
            newest = event if wins else newest
        self._check("the verdicts of explain", [step.verdict for step in found.steps], verdicts)
        row = self.table.get({"order_id": orders.STORY})
        self._check("the order that is looked up", None if row is None else tuple(row.values()), newest and newest.row)
        steps = [{"version": step.version, "verdict": step.verdict, "words": step.words} for step in found.steps]
        self._note("explain", key={"order_id": orders.STORY}, row=row, records=steps)
        self.tell(
            f"4. Why does order {orders.STORY} say {row and row['state']!r}? Its records, and what each one did:",
            pa.Table.from_pylist(steps).select(["version", "words"]),
        )

    def changes(self) -> None:
        feed = self.table.changes(self._loaded).read_all()
        names = self.table.schema.names
        found = Counter(
            orders.Change(row["_commit_version"], row["_row_kind"], tuple(row[name] for name in names))
            for row in feed.to_pylist()
        )
        versions = sorted(self._states)
        expected = Counter(
            change
            for before, after in pairwise(versions)
            for change in orders.changes_of(after, self._states[before], self._states[after])
        )
        self._check("the change feed", found, expected)
        counts = Counter((change.version, change.kind) for change in found.elements())
        kinds = ("+I", "-U", "+U", "-D")
        rows = [{"version": version, **{kind: counts[version, kind] for kind in kinds}} for version in versions[1:]]
        self._note("changes", since=self._loaded, commits=rows)
        self.tell(
            "5. The change feed tells what each commit changed in the rows. Late and repeated events changed\n"
            "   nothing, so they are not in it.",
            pa.Table.from_pylist(rows),
        )

    def compact(self) -> None:
        before = self.table.detail()
        result = self.table.compact()
        after = self.table.detail()
        rows = self._rows_now()
        self._check("the rows after the compaction", _sorted_rows(self.table.to_arrow()), rows)
        self._check("the rows as other Delta readers see them", _sorted_rows(self.table.to_arrow(mode="base")), rows)
        facts = [
            {"": "before", "live log blocks": before.log_blocks, "read amplification": before.read_amplification},
            {"": "after", "live log blocks": after.log_blocks, "read amplification": after.read_amplification},
        ]
        shown = [{**row, "read amplification": f"{row['read amplification']:.2f}"} for row in facts]
        self._note(
            "compact",
            version=result.version,
            rows=result.rows,
            read_amplification={"before": before.read_amplification, "after": after.read_amplification},
        )
        self.tell(
            f"6. A compaction merges the logs into base files, {result.rows:,} rows in version {result.version}. The "
            "rows are the same,\n   reads need no merge, and every Delta reader sees them now.",
            pa.Table.from_pylist(shown),
        )

    def _rows_now(self) -> list[tuple[Any, ...]]:
        """What the table has to hold."""
        newest = self._states[max(self._states)]
        return [event.row for _, event in sorted(newest.items()) if event.kind != "-D"]

    def _check(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            raise LakeMergeError(
                f"the demo's table at {self.table.url} is wrong: {what} differ from the plain computation; "
                "keep the table and report this",
                table=self.table.url,
            )
        self.checked += 1

    def _note(self, step: str, **facts: object) -> None:
        self.steps.append({"step": step, **facts})


def _sorted_rows(rows: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in rows.to_pylist())


def _told(text: str, rows: pa.Table | None) -> None:
    say_lines(f"\n{text}")
    if rows is not None:
        say_lines("")
        shown_rows(rows, limit=_SHOWN)


def _silent(text: str, rows: pa.Table | None) -> None:
    pass


def _next_steps(place: str) -> str:
    lines = [
        ("show", "", "what the table is, and what reading it costs"),
        ("history", "", "what each commit did"),
        ("get", f"order_id={orders.STORY}", "one row"),
        ("explain", f"order_id={orders.STORY} --since 0", "where it came from, record by record"),
        (
            "query",
            "'SELECT state, count(*) FROM self GROUP BY state'",
            "SQL, by DuckDB: pip install 'lakemerge[query]'",
        ),
        ("diff", "4 5 --limit 5", "how two versions differ"),
        ("changes", "--since 1 --until 2", "what a commit changed"),
    ]
    commands = [(f"lakemerge {name} {place} {rest}".rstrip(), what) for name, rest, what in lines]
    width = max(len(command) for command, _ in commands)
    told = "\n".join(f"  {command:<{width}}  # {what}" for command, what in commands)
    return (
        f"\nThe table is {place}. Try next:\n{told}\nWith another table: lakemerge init --help. To tidy up, delete it."
    )
