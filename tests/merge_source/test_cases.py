"""The acceptance cases: what each run emits, in order, and the whole output after it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lakemerge import LakeMergeError
from tests.merge_source.world import World

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "cases.json").read_text())["cases"]


def renumbered(entities: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Only the order of ``_updated`` counts."""
    return [{**entity, "_updated": place} for place, entity in enumerate(entities)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_the_source_gives_what_the_cases_say(case: dict[str, Any], tmp_path: Path) -> None:
    world, config = World(tmp_path), case["config"]
    for dataset in case["datasets"]:
        world.create(dataset["name"], dataset["schema"], dataset["rows"])
    for number, expected in enumerate(case["expected"]):
        step = case["steps"][number - 1] if number else {"changes": {}}
        for old, new in step.get("rename", {}).items():
            world.rename(old, new)
        for name, schema in step.get("schemas", {}).items():
            world.create(name, schema)
        for name, changes in step["changes"].items():
            world.apply(name, changes)
        last, config = config, step.get("config", config)
        if "error" in expected:
            with pytest.raises(LakeMergeError) as caught:
                world.run(config, full=step.get("full", False))
            assert caught.value.code == expected["error"]
            config = last
        else:
            assert renumbered(world.run(config, full=step.get("full", False))) == renumbered(expected["emitted"])
        assert world.source is not None
        assert renumbered(world.source.entities()) == renumbered(expected["state"])
