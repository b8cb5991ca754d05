"""The guide on user mergers runs as it stands, and its order example takes late and repeated events."""

from __future__ import annotations

import importlib.util
import io
import itertools
import random
import re
import sys
import types
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakemerge import LakeTable, MergerConfigurationError
from mergers import MergerRegistry, default_registry
from mergers.testing import MergerSuite

DOCS = Path(__file__).resolve().parents[3] / "docs"
GUIDE = DOCS / "guides" / "user-mergers.md"
EXAMPLE = DOCS / "examples" / "order_merger.py"
DDL = "order_id BIGINT, state STRING, order_info STRING, payment_info STRING"

EVENTS = (
    {"order_id": 1, "state": "CREATED", "order_info": "two books"},
    {"order_id": 1, "state": "PAID", "payment_info": "card"},
    {"order_id": 1, "state": "CANCELLED", "payment_info": "refunded"},
    {"order_id": 2, "state": "CREATED", "order_info": "a lamp"},
    {"order_id": 2, "state": "PAID", "payment_info": "cash"},
)
ORDERS = [
    {"order_id": 1, "state": "CANCELLED", "order_info": "two books", "payment_info": "refunded"},
    {"order_id": 2, "state": "PAID", "order_info": "a lamp", "payment_info": "cash"},
]
"""What the events come to, whatever their order."""


def example() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("order_merger", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look it up
    spec.loader.exec_module(module)
    return module


OrderMerger: Any = example().OrderMerger


class TestOrderMerger(MergerSuite):
    merger = OrderMerger()
    schema = pa.schema([("order_id", pa.int64()), *((n, pa.string()) for n in ("state", "order_info", "payment_info"))])
    key = ("order_id",)
    values = {"state": ["CREATED", "PAID", "CANCELLED", "unheard of", None]}  # noqa: RUF012 - as the guide has it
    max_examples = 15


def send(table: LakeTable, event: dict[str, Any]) -> None:
    table.upsert(pa.Table.from_pylist([event]))


def rows(table: LakeTable) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.to_arrow().to_pylist()
    return sorted(found, key=lambda row: int(row["order_id"]))


@pytest.mark.parametrize("seed", range(6))
def test_late_and_repeated_events(seed: int, tmp_path: Path) -> None:
    """Each event comes once or twice, in any order, compacted at any moment."""
    rng = random.Random(seed)
    sent = [event for event in EVENTS for _ in range(rng.randint(1, 2))]
    rng.shuffle(sent)
    table = LakeTable.create(
        str(tmp_path / "orders"), DDL, key=["order_id"], merger=OrderMerger(), mergers=[OrderMerger], buckets=2
    )
    for event in sent:
        send(table, event)
        if rng.random() < 0.3:
            table.compact()
    assert rows(table) == ORDERS


def test_every_order_of_one_orders_events(tmp_path: Path) -> None:
    """One table holds all orders of arrival, each as an order of its own."""
    table = LakeTable.create(
        str(tmp_path / "orders"), DDL, key=["order_id"], merger=OrderMerger(), mergers=[OrderMerger], buckets=1
    )
    arrivals = list(itertools.permutations(EVENTS[:3]))
    for position in range(3):
        for number, arrival in enumerate(arrivals):
            send(table, {**arrival[position], "order_id": number})
    assert rows(table) == [{**ORDERS[0], "order_id": number} for number in range(6)]


def test_the_example_checks_the_table(tmp_path: Path) -> None:
    with pytest.raises(MergerConfigurationError, match="needs a string column 'state'"):
        LakeTable.create(
            str(tmp_path / "t"), "order_id BIGINT", key=["order_id"], merger="order", mergers=[OrderMerger]
        )


@pytest.fixture
def registry_put_back() -> Iterator[None]:
    """The guide registers a class for the process."""
    registry = default_registry()
    before = MergerRegistry(registry)
    yield
    registry.__dict__.update(before.__dict__)


@pytest.mark.usefixtures("registry_put_back")
def test_the_guide_runs_as_it_stands(tmp_path: Path) -> None:
    text = GUIDE.read_text()
    blocks = re.findall(r"(<!-- file: (.+?) -->\n)?```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == text.count("```python") == 6
    module = types.ModuleType("guide_user_mergers")
    module.__dict__.update(path=str(tmp_path / "counters"), orders_path=str(tmp_path / "orders"))
    sys.modules[module.__name__] = module
    printed = io.StringIO()
    for _, file, code in blocks:
        if file:
            assert code.strip() in (GUIDE.parent / file).read_text()
            module.__dict__["OrderMerger"] = OrderMerger
            continue
        with redirect_stdout(printed):
            exec(compile(code, str(GUIDE), "exec"), module.__dict__)  # noqa: S102 - the guide's own code
    del sys.modules[module.__name__]
    assert printed.getvalue().startswith("merger 'capped-sum' is not selective:\n")
    suite = module.__dict__["TestOrderMerger"]()
    suite.max_examples = 3
    suite.test_fold_may_be_split_anywhere()
    assert suite.schema.names == ["order_id", "state", "order_info", "payment_info"]
