"""Which session is active while another one is worked on."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakemerge.spark import sessions
from lakemerge.spark.sessions import made_active

Py4JError = importlib.import_module("py4j.protocol").Py4JError


class _Forbidding:
    """A JVM that lets Python call some methods of sessions only."""

    def __init__(self, forbidden: str) -> None:
        self._forbidden = forbidden
        self.active = "before"

    def __getattr__(self, name: str) -> Any:
        def called(*given: str) -> object:
            if name == self._forbidden:
                raise Py4JError(f"{name} is not allowed")
            if name == "setActiveSession":
                [self.active] = given
            return {"isDefined": True, "get": self.active}.get(name, self)

        return called if name in ("getActiveSession", "isDefined", "get", "setActiveSession") else self


@pytest.mark.parametrize("forbidden", ["getActiveSession", "isDefined", "setActiveSession", "nothing"])
def test_where_calls_are_forbidden_nothing_changes(monkeypatch: pytest.MonkeyPatch, forbidden: str) -> None:
    jvm: Any = _Forbidding(forbidden)
    monkeypatch.setattr(sessions, "jvm_session", lambda _: "ours")
    with made_active(jvm):
        assert jvm.active == ("ours" if forbidden == "nothing" else "before")
    assert jvm.active == "before"


def test_an_error_passes_and_the_session_comes_back(spark: SparkSession) -> None:
    found = SparkSession.active()
    with pytest.raises(ValueError, match="mine"), made_active(spark.newSession()):
        raise ValueError("mine")
    assert SparkSession.active() is found
