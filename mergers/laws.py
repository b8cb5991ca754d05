"""The algebraic laws a merger configuration declares, and what each of them allows."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Laws"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Laws:
    """What a plan may do with records of one table. Only declared laws may be used.

    Source: docs/merge-semantics.md, section 6.
    """

    associative: bool = False
    """``(a.b).c = a.(b.c)`` for records in order: writers may pre-combine, and logs may be merged with logs."""
    commutative: bool = False
    """``a.b = b.a`` where the orderings of a and b differ, or where the table has none or the merger does not use it:
    records may arrive late, in any order that the ordering allows. Verification checks it on a table's own records."""
    replay_safe: bool = False
    """``a.b.a = a.b``: at-least-once delivery needs no deduplication key."""
    selective: bool = False
    """The result is one of the inputs, whole: readers may use positions instead of rows."""
