"""Checks of mergers, for authors of mergers. They need hypothesis: ``pip install lakemerge[testing]``."""

from __future__ import annotations

from mergers.errors import InstallError

try:
    import hypothesis  # noqa: F401
except ImportError as error:
    raise InstallError("mergers.testing needs hypothesis: pip install 'lakemerge[testing]'", extra="testing") from error

from mergers.testing.laws import Counterexample, find_counterexample
from mergers.testing.suite import MergerSuite

__all__ = ["Counterexample", "MergerSuite", "find_counterexample"]
