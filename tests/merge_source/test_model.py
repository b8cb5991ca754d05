"""The model gives what the acceptance cases say, so that it can speak for them in random histories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.merge_source.model import Model, Refused

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "cases.json").read_text())["cases"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_the_model_gives_what_the_cases_say(case: dict[str, Any]) -> None:
    model, config = Model(), case["config"]
    tables = {dataset["name"]: dataset["name"] for dataset in case["datasets"]}
    for dataset in case["datasets"]:
        for row in dataset["rows"]:
            model.put(dataset["name"], row)
    for number, expected in enumerate(case["expected"]):
        step = case["steps"][number - 1] if number else {"changes": {}}
        for old, new in step.get("rename", {}).items():
            tables[new] = tables.pop(old)
        tables |= {name: name for name in step.get("schemas", {})}
        for name, changes in step["changes"].items():
            for change in changes:
                if "upsert" in change:
                    model.put(tables[name], change["upsert"])
                else:
                    model.delete(tables[name], change["delete"])
        config = step.get("config", config)
        if "error" in expected:
            with pytest.raises(Refused, match=expected["error"]):
                model.run(config, tables, full=step.get("full", False))
        else:
            assert model.run(config, tables, full=step.get("full", False)) == expected["emitted"]
        assert model.state == expected["state"]
        config = case["config"] if "error" in expected and "config" not in step else config
