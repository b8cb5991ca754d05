"""Random histories of every built-in configuration, through the kernel, against the plain-Python model.

``LAKEMERGE_EXAMPLES`` sets how many a configuration (5 in ``make test-deep``).
"""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from mergers import default_registry, portions
from tests.property.effort import examples, thorough
from tests.property.merger_configurations import CONFIGURATIONS, Configuration, check, histories


def test_every_builtin_has_a_configuration() -> None:
    builtin = {merger.name for merger in default_registry() if merger.__module__.startswith("mergers.builtin.")}
    assert {configuration.merger for configuration in CONFIGURATIONS} == builtin


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=str)
@thorough(examples(5))
@given(data=st.data())
def test_kernel_is_the_left_fold(configuration: Configuration, data: st.DataObject) -> None:
    check(configuration, data.draw(histories(configuration)))


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=str)
@thorough(examples(5))
@given(data=st.data())
def test_large_records_are_the_left_fold_too(configuration: Configuration, data: st.DataObject) -> None:
    """Records that one array cannot hold are folded in portions: some keys at a time, or some records of a key."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(portions, "LARGEST_BYTES", data.draw(st.sampled_from([1, 60, 200])))
        check(configuration, data.draw(histories(configuration)))
