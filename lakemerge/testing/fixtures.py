"""A pytest fixture for tests of jobs: a folder for tables, whose stores count what is asked of them, or fail.

In ``conftest.py``: ``pytest_plugins = ["lakemerge.testing.fixtures"]``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from lakemerge.storage import Store, place_of
from lakemerge.table import opening
from lakemerge.testing.counting import CountingStore
from lakemerge.testing.faults import Chance, Fault, FaultStore

__all__ = ["Lake", "lake"]

_Wrapper = TypeVar("_Wrapper", bound=Store)


class Lake:
    """A folder for the tables of a test. A job creates and opens tables there by their paths, as anywhere else."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str) -> str:
        """Where the table ``name`` is, or would be."""
        return str(self.folder / name)

    @contextmanager
    def counting(self, name: str) -> Iterator[CountingStore]:
        """While the context lasts, whoever opens the table by its path asks a store that counts.

        Tables that were opened before keep their stores. Spark's tasks count in their own processes.
        """
        with self._through(name, CountingStore) as store:
            yield store

    @contextmanager
    def failing(self, name: str, *faults: Fault | Chance) -> Iterator[FaultStore]:
        """While the context lasts, whoever opens the table by its path gets a store that fails as ``faults`` say. All
        who open it share one store, so calls are counted from the beginning of the context."""
        with self._through(name, lambda store: FaultStore(store, *faults)) as store:
            yield store

    @contextmanager
    def _through(self, name: str, wrap: Callable[[Store], _Wrapper]) -> Iterator[_Wrapper]:
        """The stores of nested contexts lie one around the other."""
        before: Callable[..., Store] = vars(opening)["open_store"]
        wrapper = wrap(before(self.path(name)))

        def open_store(url: str | os.PathLike[str], storage_options: Mapping[str, object] | None = None) -> Store:
            is_ours = place_of(url) == place_of(self.path(name))
            return wrapper if is_ours else before(url, storage_options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(opening, "open_store", open_store)
            yield wrapper


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A folder for tables, empty for each test."""
    return Lake(tmp_path)
