"""Modules under the names that they had before 0.2, so that what was pickled then can be read."""

from __future__ import annotations

import sys
from types import ModuleType

from lakemerge._internal import kept
from lakemerge.delta import actions, fingerprint, history, log, snapshot
from lakemerge.format import block_index, config, savepoint
from lakemerge.layout import view
from lakemerge.results import findings, plans, schedule
from lakemerge.table import describe, session

__all__ = ["know_earlier_names"]

_EARLIER: dict[str, ModuleType] = {
    "lakemerge.config": config,
    "lakemerge.describe": describe,
    "lakemerge.findings": findings,
    "lakemerge.kept": kept,
    "lakemerge.log.actions": actions,
    "lakemerge.log.fingerprint": fingerprint,
    "lakemerge.log.history": history,
    "lakemerge.log.log": log,
    "lakemerge.log.snapshot": snapshot,
    "lakemerge.plans": plans,
    "lakemerge.schedule": schedule,
    "lakemerge.session": session,
    "lakemerge.slices.blocks": block_index,
    "lakemerge.slices.savepoints": savepoint,
    "lakemerge.slices.view": view,
}


def know_earlier_names() -> None:
    """Give the modules of classes that a user may have pickled a second name."""
    for name, module in _EARLIER.items():
        sys.modules.setdefault(name, module)
