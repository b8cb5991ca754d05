"""The contract of stores, with its race of processes, on each server."""

from __future__ import annotations

import pytest

from lakemerge.storage import Put, Store, open_store
from lakemerge.testing.store_suite import StoreSuite
from tests.stores.servers import Place


class TestStores(StoreSuite):
    @pytest.fixture
    def store(self, server: Place, place: str) -> Store:
        return open_store(f"{place}/some prefix/table=%20", server.options)

    def test_the_race(self, store: Store, server: Place) -> None:  # type: ignore[override]
        """A real race where there is a server of its own. Threads of one in Python take turns, so there a short one."""
        if server.is_emulator:
            super().test_the_race(store)
        outcomes = [store.put_if_absent("file", bytes([number])) for number in range(3)]
        assert outcomes == [Put.CREATED, Put.EXISTS, Put.EXISTS]

    @pytest.mark.parametrize("size_bytes", [0, 10, 40 << 20])
    def test_an_output_that_fails_leaves_nothing(self, store: Store, server: Place, size_bytes: int) -> None:  # type: ignore[override]
        """Azurite takes blocks that nobody committed for a blob, so a name is not free again there."""
        if server.cloud.name == "gcs" or not server.is_emulator:
            super().test_an_output_that_fails_leaves_nothing(store, size_bytes)
            return
        with pytest.raises(KeyboardInterrupt), store.open_output("folder/file") as file:  # noqa: PT012
            file.write(b"x" * size_bytes)
            raise KeyboardInterrupt
        assert store.stat("folder/file") is None
        assert list(store.list("")) == []


@pytest.mark.long
class TestStoresAtTheRootOfABucket(TestStores):
    race_processes = 2
    race_paths = 3

    @pytest.fixture
    def store(self, server: Place, place: str) -> Store:
        other = {"gs": "gcs", "az": "abfs"}[server.cloud.scheme]
        return open_store(place.replace(server.cloud.scheme, other, 1) + "/", server.options)
