"""The conformance cases as data, and a runner for engines of any kind. Source: docs/guides/conformance.md."""

from __future__ import annotations

from mergers.conformance.runner import CASES, MODES, Case, Engine, Failure, Mode, Report, Table, load_cases, run

__all__ = ["CASES", "MODES", "Case", "Engine", "Failure", "Mode", "Report", "Table", "load_cases", "run"]
