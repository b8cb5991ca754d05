"""What all unit tests share: none sees the Spark session that other tests of its process made."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table asks for the session of its process. Which tests ran before, in the same process, must not matter."""
    monkeypatch.setattr("lakemerge.spark.sessions.active_session", lambda: None)
