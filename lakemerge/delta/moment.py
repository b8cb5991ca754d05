"""Times of one process, compared by two clocks: either of them alone can be wrong about how long something took."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Moment"]


@dataclass(frozen=True, slots=True)
class Moment:
    """When something was so."""

    wall_ms: int
    """UTC epoch milliseconds: somebody may set this clock, forwards or back."""
    running_ms: int
    """By a clock that nobody sets; it means nothing to another host, and may stand still while the host sleeps."""

    def is_within(self, age_ms: int, now: Moment) -> bool:
        """Whether this is at most so long before ``now`` for sure: by both clocks, neither of which went back."""
        ages_ms = (now.wall_ms - self.wall_ms, now.running_ms - self.running_ms)
        return all(0 <= past_ms <= age_ms for past_ms in ages_ms)
