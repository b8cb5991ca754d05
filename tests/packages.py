"""What tests need of a package, and its oldest version that users may have lacks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from lakemerge.frames import OLDEST_WITH_VIEWS

__all__ = ["HAS_VIEWS", "halves", "needs_newer_arrow"]

HAS_VIEWS = int(pa.__version__.split(".")[0]) >= OLDEST_WITH_VIEWS


def needs_newer_arrow(why: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not HAS_VIEWS, reason=f"pyarrow {pa.__version__} {why}")


def halves(values: Sequence[float | None]) -> pa.Array:
    """Numbers of 16 bits. pyarrow 19 makes none of Python's."""
    numbers = np.array([0.0 if value is None else value for value in values], np.float16)
    return pa.array(numbers, mask=np.array([value is None for value in values], np.bool_))
