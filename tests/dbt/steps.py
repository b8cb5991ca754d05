"""What a team does with the project in ``examples/dbt``, in one process, which dbt's own environment runs.

Each step that fails ends it.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path


def main(project: Path) -> None:
    seed, rows = project / "seeds" / "raw_orders.csv", "id,state,at\n1,new,10\n2,new,10\n1,paid,20\n3,new,15\n"
    runner = importlib.import_module("dbt.cli.main").dbtRunner()

    def dbt(*arguments: str, fails: bool = False) -> None:
        done = runner.invoke([*arguments, "--project-dir", str(project), "--profiles-dir", str(project)])
        if done.success == fails:
            sys.exit(f"dbt {' '.join(arguments)}: {done.exception or done.result}")

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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
