"""What is wrong with a table: the findings of a check, and keys whose merge fails.

The records of such keys wait in the logs for a repair.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa

from lakemerge.results.display import definition_html, table_html
from mergers.wording import printable

__all__ = ["CheckResult", "FailedKey", "FailedKeys", "FailedRecord", "Finding"]

_FAILED = pa.schema(
    [
        ("key", pa.string()),
        ("code", pa.string()),
        ("column", pa.string()),
        ("reason", pa.string()),
        ("version", pa.int64()),
        ("kind", pa.string()),
        ("values", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    path: str | None
    """The path of the file at fault, inside the table."""
    problem: str
    remedy: str
    kind: str
    """The kind of damage, such as ``file-missing``. docs/guides/when-something-is-wrong.md has a repair for each."""

    def __str__(self) -> str:
        where = "" if self.path is None or self.path in self.problem else f"{self.path}: "
        return printable(f"{where}{self.problem}. {self.remedy}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What a check examined, and what is wrong."""

    version: int | None
    """The version that was checked: the latest or, if that cannot be read, the newest one below the damage. ``None`` if
    no version can be read."""
    commits: int
    checkpoints: int
    files: int
    """Base, winner, positions, tombstone, log and index files."""
    rows: int
    """Keys read: of stored rows and of log records."""
    seconds: float
    findings: tuple[Finding, ...] = ()
    repaired: tuple[str, ...] = ()
    """What a repair did. The findings are those after it."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def __str__(self) -> str:
        looked = f"version {self.version}: {self.commits} commits, {self.checkpoints} checkpoints, {self.files} files, "
        head = f"{looked}{self.rows:,} keys in {self.seconds:.1f} s"
        done = [printable(f"repaired: {text}") for text in self.repaired]
        return "\n".join([f"{head}: {'nothing is wrong' if self.ok else 'damaged'}", *done, *map(str, self.findings)])


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRecord:
    """A record of a key whose merge fails. It is in the logs, and stays there."""

    version: int
    """The version that committed it."""
    kind: str
    """``+I``, ``+U``, ``-U`` or ``-D``."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """The columns that it sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedKey:
    """A key whose merge fails. No row is given for it until a later record makes the merge succeed."""

    key: Mapping[str, Any]
    code: str
    """The code of the error, such as ``merge-overflow``."""
    column: str | None
    """The column at fault, if it is one."""
    reason: str
    records: tuple[FailedRecord, ...] = ()
    """The first of its records that are not compacted, in the order of their commits."""
    more: int = 0
    """How many further records there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedKeys:
    """All keys of a version whose merge fails."""

    version: int
    keys: tuple[FailedKey, ...]

    def __iter__(self) -> Iterator[FailedKey]:
        return iter(self.keys)

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, place: int) -> FailedKey:
        return self.keys[place]

    def to_arrow(self) -> pa.Table:
        """A row for each record. Keys and values are JSON texts, because their columns differ from table to table."""
        rows = [
            {
                "key": _json(failed.key),
                "code": failed.code,
                "column": failed.column,
                "reason": failed.reason,
                "version": record.version,
                "kind": record.kind,
                "values": _json(record.values),
            }
            for failed in self.keys
            for record in failed.records
        ]
        return pa.Table.from_pylist(rows, schema=_FAILED)

    def __repr__(self) -> str:
        lines = [f"{len(self.keys)} keys of version {self.version} cannot be merged"]
        for failed in self.keys:
            lines.append(f"  {dict(failed.key)}: {failed.reason}")
            lines += [f"    {record.version:>6}  {record.kind}  {dict(record.values)}" for record in failed.records]
            lines += [f"    and {failed.more} more records"] if failed.more else []
        return "\n".join(map(printable, lines))

    def _repr_html_(self) -> str:
        rows = [
            (str(dict(failed.key)), failed.reason, record.version, record.kind, str(dict(record.values)))
            for failed in self.keys
            for record in failed.records
        ]
        facts = [("version", str(self.version)), ("keys that cannot be merged", str(len(self.keys)))]
        return definition_html(facts) + table_html(("key", "why", "version", "kind", "values"), rows)


def _json(value: Mapping[str, Any]) -> str:
    return orjson.dumps(dict(value), default=_plain, option=orjson.OPT_NON_STR_KEYS).decode()


def _plain(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else str(value)
