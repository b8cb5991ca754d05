"""The servers that tests here run against: see :mod:`tests.stores.servers`."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest

from tests.s3.wire import Wire
from tests.stores.servers import CLOUDS, Cloud, Place, running_server


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the accounts of whoever runs the tests."""
    for name in [name for name in os.environ if name.startswith(("AZURE_", "GOOGLE_", "GCSFS_", "STORAGE_EMULATOR"))]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session", params=CLOUDS, ids=str)
def cloud(request: pytest.FixtureRequest) -> Cloud:
    found: Cloud = request.param
    return found


@pytest.fixture(scope="session")
def server(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with running_server(cloud, tmp_path_factory.mktemp(cloud.name)) as running:
        yield running


@pytest.fixture
def place(server: Place) -> str:
    """A URL of a bucket of its own for each test."""
    name = f"bucket-{uuid.uuid4().hex}"
    server.make_bucket(name)
    return f"{server.cloud.scheme}://{name}"


@pytest.fixture(scope="session")
def running_wire(cloud: Cloud) -> Iterator[Wire]:
    with cloud.wire() as wire:
        yield wire


@pytest.fixture
def wire(running_wire: Wire) -> Wire:
    running_wire.begin({}, [], [])
    return running_wire
