"""What a merger configuration is, for plans: one declaration beside its laws."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Traits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Properties of a merger configuration that writers and plans use. A merger that declares none is always right,
    and misses what each of them allows.

    Source: docs/guides/user-mergers.md.
    """

    uses_ordering: bool = True
    """Ordering columns decide. Where they are mere data, frames may lack them."""
    lone_upsert_is_row: bool = False
    """An upsert of all columns onto an absent key always gives exactly its own row.

    Bulk loads then skip the fold and ``Merger.check_records``. So it is false where ``check_records`` may refuse an
    upsert. Columns in ``Merger.bulk_load_vetoes`` are checked.
    """
    only_picks: bool = False
    """Every value of a merged row is one of those in the records. The merger picks it by comparing them with each
    other: it never computes a value, and compares none with values in options.

    Columns may then get wider types under records that are not folded yet, since it does not matter in which type
    they are folded.
    """
    whole_records: bool = False
    """Columns that every upsert carries come from one record together: the merged row has the values that some upsert
    has in all of them. A condition on these columns that all upserts meet is then met by all rows.
    """
    tombstones: bool = True
    """A deleted key remembers its ordering, where ordering decides, and older records stay out."""
