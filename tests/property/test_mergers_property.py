"""Random histories of every built-in configuration, through the kernel, against the plain-Python model.

``LAKEMERGE_EXAMPLES`` sets how many a configuration (5 by default).
"""

from __future__ import annotations

import os

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from mergers import default_registry
from tests.property.merger_configurations import CONFIGURATIONS, Configuration, check, histories

EXAMPLES = int(os.environ.get("LAKEMERGE_EXAMPLES", "5"))


def test_every_builtin_has_a_configuration() -> None:
    builtin = {merger.name for merger in default_registry() if merger.__module__.startswith("mergers.builtin.")}
    assert {configuration.merger for configuration in CONFIGURATIONS} == builtin


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=str)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(data=st.data())
def test_kernel_is_the_left_fold(configuration: Configuration, data: st.DataObject) -> None:
    check(configuration, data.draw(histories(configuration)))
