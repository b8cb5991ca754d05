"""Times of one process by two clocks. Each clock alone can be wrong about how long something took."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Moment"]


@dataclass(frozen=True, slots=True)
class Moment:
    """A time, by both clocks."""

    wall_ms: int
    """UTC epoch milliseconds. Somebody may set this clock forwards or back."""
    running_ms: int
    """Milliseconds by a clock that nobody sets. They mean nothing to another host, and may stand still while the host
    sleeps."""

    def is_within(self, age_ms: int, now: Moment) -> bool:
        """Whether this is surely at most so long before ``now``: by both clocks, and neither went back."""
        ages_ms = (now.wall_ms - self.wall_ms, now.running_ms - self.running_ms)
        return all(0 <= past_ms <= age_ms for past_ms in ages_ms)
