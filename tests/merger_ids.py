"""The strategy ids of the built-in mergers, written down once more so that a change of one is seen."""

from __future__ import annotations

__all__ = ["IDS"]

IDS = {
    "aggregate": "33fd0a4f-d3ed-4372-a9d9-0e5ff7698ff2",
    "aws-dms": "908c97eb-a602-43df-b8be-29892d65fbcb",
    "commit-time": "ce9acb64-bde0-424c-9b91-f6ebba25356d",
    "debezium-mysql": "4962883a-33d3-4a9c-9eff-cc0b25ec8da5",
    "debezium-postgres": "a4b5a0f1-0de3-49d0-a6f2-4c222823594b",
    "event-time": "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5",
    "expression": "85c31f6f-2f26-4e2e-9112-513267300a5c",
    "first-row": "70a3a575-2f8e-41b5-ab1b-d36342ccc99c",
    "overwrite-non-defaults": "2165fa92-ae80-44ad-bbc0-d9f5fb16194e",
    "partial-update": "9bc70621-7bf9-4615-b262-51c0268ec216",
}
"""Tables name their merger by these; a changed one makes every such table unreadable."""
