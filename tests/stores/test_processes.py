"""Operating-system processes on one table, which they reach by the clouds' variables alone."""

from __future__ import annotations

import pytest

from tests.property.test_concurrency import check_many_processes
from tests.stores.servers import Place


@pytest.mark.serial
@pytest.mark.long
def test_many_processes_on_one_table(server: Place, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if server.cloud.name == "azure":
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", str(server.options["connection_string"]))
    else:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", str(server.options["endpoint_url"]))
        # No credentials are found, so none are sent. Nobody looks for those of a machine of Google's.
        monkeypatch.setenv("NO_GCE_CHECK", "true")
        monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")
    check_many_processes(f"{place}/table", writers=2)
