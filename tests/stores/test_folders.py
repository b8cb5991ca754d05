"""An Azure account with a hierarchical namespace, as its reference describes it: no emulator is one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lakemerge.storage import Store, open_store
from lakemerge.testing.store_suite import StoreSuite
from tests.stores.wire import WireAzure, azure_wire_server


@pytest.fixture(scope="module")
def folders() -> Iterator[WireAzure]:
    with azure_wire_server() as wire:
        wire.has_folders = True
        yield wire


@pytest.mark.long
class TestFolders(StoreSuite):
    @pytest.fixture
    def store(self, folders: WireAzure) -> Store:
        folders.begin({}, [], [])
        folders.folders.clear()
        return open_store("az://bucket/t", folders.options)

    def test_the_race(self, store: Store) -> None:
        """The other classes race."""

    @pytest.mark.parametrize("size_bytes", [10])
    def test_an_output_that_fails_leaves_nothing(self, store: Store, size_bytes: int) -> None:
        super().test_an_output_that_fails_leaves_nothing(store, size_bytes)

    def test_a_folder_is_no_file_and_goes_when_it_is_empty(self, store: Store, folders: WireAzure) -> None:
        store.put("data/part/file", b"x")
        assert folders.folders == {"bucket/t", "bucket/t/data", "bucket/t/data/part"}
        assert (store.stat("data"), [file.path for file in store.list("")]) == (None, ["data/part/file"])
        with pytest.raises(FileNotFoundError):
            store.get("data")
        store.delete_empty_folders("data")
        assert "bucket/t/data/part" in folders.folders
        store.delete(["data/part/file"])
        store.delete_empty_folders("data")
        assert folders.folders == {"bucket/t"}
        store.delete_empty_folders("")
        assert folders.folders == set()
