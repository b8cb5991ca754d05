"""What a case of one engine gave: rows of samples, and a file for each finished case."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from benchmarks.measure import with_lines

__all__ = ["CaseResult", "Row"]

_SAMPLES = ("samples", "floor_samples")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One number of one engine, with its samples and those of the engine's floor."""

    step: str
    unit: Literal["s", "bytes", "objects", "rate"]
    samples: tuple[float, ...] = ()
    floor_samples: tuple[float, ...] = ()
    at: float | None = None
    """Where on the axis of a plot: rows of the table, or commits that are pending."""
    problems: tuple[str, ...] = ()
    """How the answers that belong to this row were wrong: then it has no value."""
    cannot: str | None = None
    """Why the engine cannot do it."""

    @property
    def is_void(self) -> bool:
        return bool(self.problems)

    @property
    def value(self) -> float | None:
        """The median of the samples, where the row counts."""
        return statistics.median(self.samples) if self.samples and not self.is_void else None

    @property
    def floor(self) -> float | None:
        return statistics.median(self.floor_samples) if self.floor_samples else None

    @property
    def ratio(self) -> float | None:
        """Value per floor; ``None`` where either is missing or the floor is zero."""
        return None if self.value is None or not self.floor else self.value / self.floor

    def text(self) -> str:
        """As JSON; what is not set is left out. Samples have a billionth of a second."""
        body = {name: value for name, value in asdict(self).items() if value not in (None, ())}
        rounded = {name: [round(sample, 9) for sample in body[name]] for name in _SAMPLES if name in body}
        return json.dumps({**body, **rounded})

    @classmethod
    def of_json(cls, body: Mapping[str, object]) -> Row:
        names = {item.name for item in fields(cls)}
        given = {name: tuple(value) if isinstance(value, list) else value for name, value in body.items()}
        return cls(**{name: value for name, value in given.items() if name in names})  # type: ignore[arg-type]  # JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """All rows of one case of one engine."""

    engine: str
    case: str
    rows: tuple[Row, ...] = ()
    configuration: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str | None] = field(default_factory=dict)
    peak_memory_bytes: int | None = None
    """Most memory of the worker, its JVM and its Python workers at one time; ``None`` where unknown."""
    peak_memory_parts: Mapping[str, int] = field(default_factory=dict)
    """The same bytes by who held them; empty in earlier results."""
    seconds: float = 0.0
    failure: str | None = None
    """How the worker ended, where it did not finish the case."""
    given_up: str | None = None
    """Why the case was not waited for."""

    def text(self) -> str:
        """As JSON, with a line for each row; what is not set is left out."""
        named = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "rows"}
        return with_lines({name: value for name, value in named.items() if value}, "rows", map(Row.text, self.rows))

    def write(self, folder: Path) -> None:
        """At once, so that there is no half of a result."""
        path = self.path(folder, self.engine, self.case)
        path.with_suffix(".partial").write_text(self.text() + "\n")
        path.with_suffix(".partial").rename(path)

    @classmethod
    def read(cls, folder: Path, engine: str, case: str) -> CaseResult | None:
        """What :meth:`write` left there; ``None`` where the case is not finished."""
        path = cls.path(folder, engine, case)
        if not path.exists():
            return None
        return cls.of_json(json.loads(path.read_text()))

    @classmethod
    def of_json(cls, body: Mapping[str, Any]) -> CaseResult:
        return cls(**{**body, "rows": tuple(Row.of_json(row) for row in body["rows"])})

    @staticmethod
    def path(folder: Path, engine: str, case: str) -> Path:
        return folder / f"{engine}.{case}.json"
