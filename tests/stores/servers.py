"""Servers of Google's and Azure's stores for tests: emulators in processes of their own, and the scripted one.

``make test-stores`` names the emulators in ``LAKEMERGE_GCS_SERVER`` and ``LAKEMERGE_AZURITE``. Without these, the
scripted server in memory stands for them (:mod:`tests.stores.wire`).
"""

from __future__ import annotations

import os
import shutil
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.versitygw import free_port, running
from lakemerge.storage.azure import AzureClient, AzureStore
from lakemerge.storage.cloud_client import CloudClient
from lakemerge.storage.gcs import GCSClient, GCSStore
from lakemerge.storage.object_store import ObjectStore
from tests.s3.wire import Wire
from tests.stores.wire import azure_wire_server, gcs_wire_server

__all__ = ["CLOUDS", "Cloud", "Place", "running_server"]

AZURITE_ACCOUNT = "devstoreaccount1"
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Every Azurite has them."""


@dataclass(frozen=True, slots=True)
class Place:
    """A server that runs."""

    cloud: Cloud
    options: Mapping[str, object]
    make_bucket: Callable[[str], None]
    is_emulator: bool


@dataclass(frozen=True, slots=True)
class Cloud:
    """A protocol: our store for it, its scripted server, and its emulator."""

    name: str
    scheme: str
    store: type[ObjectStore[Any]]
    client: type[CloudClient]
    wire: Callable[[], AbstractContextManager[Wire]]
    variable: str
    emulator: Callable[[str, Path], AbstractContextManager[tuple[Mapping[str, object], Callable[[str], None]]]]

    def __str__(self) -> str:
        return self.name


@contextmanager
def _fake_gcs(program: str, folder: Path) -> Iterator[tuple[Mapping[str, object], Callable[[str], None]]]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [program, "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"]
    command += ["-public-host", f"127.0.0.1:{port}", "-external-url", url, "-log-level", "error"]

    def make(bucket: str) -> None:
        body = f'{{"name": "{bucket}"}}'.encode()
        request = urllib.request.Request(f"{url}/storage/v1/b", body, {"Content-Type": "application/json"})  # noqa: S310
        urllib.request.urlopen(request, timeout=60).close()  # noqa: S310 - the server that runs here

    with running(command, port, folder / "log"):
        yield {"token": "anon", "endpoint_url": url}, make


@contextmanager
def _azurite(program: str, folder: Path) -> Iterator[tuple[Mapping[str, object], Callable[[str], None]]]:
    port = free_port()
    node = shutil.which("node") or "node"
    command = [node, program, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence", "--silent"]
    command += ["--disableTelemetry", "--skipApiVersionCheck"]
    options = {
        "connection_string": f"DefaultEndpointsProtocol=http;AccountName={AZURITE_ACCOUNT};AccountKey={AZURITE_KEY};"
        f"BlobEndpoint=http://127.0.0.1:{port}/{AZURITE_ACCOUNT};"
    }

    def make(bucket: str) -> None:
        from azure.storage.blob import BlobServiceClient

        with BlobServiceClient.from_connection_string(options["connection_string"]) as client:
            client.create_container(bucket)

    with running(command, port, folder / "log"):
        yield options, make


CLOUDS = (
    Cloud("gcs", "gs", GCSStore, GCSClient, gcs_wire_server, "LAKEMERGE_GCS_SERVER", _fake_gcs),
    Cloud("azure", "az", AzureStore, AzureClient, azure_wire_server, "LAKEMERGE_AZURITE", _azurite),
)


@contextmanager
def running_server(cloud: Cloud, folder: Path) -> Iterator[Place]:
    """The emulator, if there is one, else the scripted server, whose buckets are there without being made."""
    program = os.environ.get(cloud.variable)
    if program is None:
        with cloud.wire() as wire:
            yield Place(cloud, wire.options, lambda _: None, is_emulator=False)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        with cloud.emulator(program, folder) as (options, make):
            yield Place(cloud, options, make, is_emulator=True)
