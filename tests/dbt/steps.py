"""What a team does with the project in ``examples/dbt``, in one process, which dbt's own environment runs.

Each step that fails ends it.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

_ORDERS = "id,state,at\n1,new,10\n2,new,10\n1,paid,20\n3,new,15\n"


class _Project:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runner = importlib.import_module("dbt.cli.main").dbtRunner()

    def __call__(self, *arguments: str, fails: bool = False) -> None:
        done = self._runner.invoke([*arguments, "--project-dir", str(self.folder), "--profiles-dir", str(self.folder)])
        if done.success == fails:
            sys.exit(f"dbt {' '.join(arguments)}: {done.exception or done.result}")


def life(project: Path) -> None:
    """The project that is shipped."""
    dbt, seed, rows = _Project(project), project / "seeds" / "raw_orders.csv", _ORDERS
    seed.write_text(rows)
    dbt("seed")
    dbt("run")
    dbt("snapshot")
    # A late event for 1, a newer one for 2, and a new order.
    seed.write_text(f"{rows}1,packed,15\n2,paid,30\n4,new,40\n")
    dbt("seed", "--full-refresh")
    dbt("run")
    dbt("snapshot")
    dbt("test")
    dbt("docs", "generate")
    dbt("run", "--full-refresh", "--select", "orders")
    model = project / "models" / "orders.sql"
    text = model.read_text()
    model.write_text(text.replace("max(at) as at", "max(at) as at, raise_error('boom') as x"))
    dbt("run", "--full-refresh", "--select", "orders", fails=True)
    model.write_text(text)


def kinds(project: Path) -> None:
    """Kinds of models that the project that is shipped does not have: see the folder ``models`` beside this file."""
    dbt, orders, events = _Project(project), project / "seeds" / "raw_orders.csv", project / "seeds" / "raw_events.csv"
    orders.write_text(_ORDERS)
    events.write_text("id,happened,n\n1,2026-11-01 10:00:00,1\n2,2026-11-02 11:00:00,2\n3,2026-11-03 00:00:00,3\n")
    dbt("seed")
    days = ("--event-time-start", "2026-11-01", "--event-time-end", "2026-11-04")
    dbt("run", *days)
    # Only what an incremental model's condition, or a batch's day, asks for is overwritten.
    orders.write_text("id,state,at\n1,packed,20\n2,gone,12\n4,new,25\n")
    events.write_text("id,happened,n\n1,2026-11-01 10:00:00,10\n2,2026-11-02 11:00:00,20\n4,2026-11-02 23:00:00,4\n")
    dbt("seed", "--full-refresh")
    grows = project / "models" / "orders_that_grow.sql"
    grows.write_text(grows.read_text().replace("select id, at", "select id, at, state"))
    dbt("run", "--event-time-start", "2026-11-02", "--event-time-end", "2026-11-03")
    orders.write_text("id,state,at\n1,packed,0\n")
    dbt("seed", "--full-refresh")
    dbt("run", "--select", "orders_that_hold", fails=True)


if __name__ == "__main__":
    {"life": life, "kinds": kinds}[sys.argv[1]](Path(sys.argv[2]))
