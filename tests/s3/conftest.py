"""The S3 servers that tests here run against.

Whatever holds of every server runs against ``endpoint``: the versitygw that ``LAKEMERGE_S3_SERVER`` names (``make
test-s3``), else moto. What needs a server that misbehaves when told to, or counts, runs against ``server``: moto.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends

from lakemerge.storage.s3_client import S3Client
from lakemerge.storage.s3_options import s3fs_options
from tests.s3.servers import Endpoint, S3Server, moto_server, versitygw_server


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the account of whoever runs the tests."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def running_server() -> Iterator[S3Server]:
    with moto_server() as server:
        yield server


@pytest.fixture
def server(running_server: S3Server) -> Iterator[S3Server]:
    yield running_server
    running_server.faults.clear()
    running_server.ignores_conditions = False


@pytest.fixture
def bucket(server: S3Server) -> str:
    """A bucket of moto's, of its own for each test."""
    name = f"bucket-{uuid.uuid4().hex}"
    s3_backends[DEFAULT_ACCOUNT_ID]["aws"].create_bucket(name, "us-east-1")
    server.requests.clear()
    return name


@pytest.fixture(scope="session")
def endpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    program = os.environ.get("LAKEMERGE_S3_SERVER")
    if program is None:
        yield request.getfixturevalue("running_server")
    else:
        with versitygw_server(program, tmp_path_factory.mktemp("versitygw")) as server:
            yield server


@pytest.fixture(scope="session")
def _clients(endpoint: Endpoint) -> S3Client:
    return S3Client("unused", s3fs_options(endpoint.options, {}))


@pytest.fixture
def place(_clients: S3Client) -> str:
    """``s3://`` and a bucket of the endpoint's, of its own for each test."""
    client = _clients
    client.bucket = f"bucket-{uuid.uuid4().hex}"
    client.call("create_bucket")
    return f"s3://{client.bucket}"
