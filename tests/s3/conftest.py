"""An S3 server for tests: moto behind werkzeug, one request at a time.

moto looks for the object and then stores it, so with the usual server, a thread per request, its
``If-None-Match`` is a race of its own. A server with one thread answers as S3 does.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from moto.s3.models import s3_backends
from werkzeug.serving import make_server

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

Fault = Callable[["S3Server", "WSGIEnvironment", "StartResponse"], Iterable[bytes]]


class _QuietHandler(MotoRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002
        pass


@dataclass
class S3Server:
    """Passes requests on to moto, notes them as ``"PUT /bucket/key"``, and misbehaves when told to.

    Each entry of ``faults`` is used up by one ``PUT``, which it answers in place of moto.
    """

    moto: WSGIApplication = field(default_factory=lambda: DomainDispatcherApplication(create_backend_app))
    url: str = ""
    requests: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    ignores_conditions: bool = False

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        query = f"?{environ['QUERY_STRING']}" if environ.get("QUERY_STRING") else ""
        self.requests.append(f"{environ['REQUEST_METHOD']} {unquote(environ['PATH_INFO'])}{query}")
        if self.ignores_conditions:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        if self.faults and environ["REQUEST_METHOD"] == "PUT":
            return self.faults.pop(0)(self, environ, start_response)
        return self.moto(environ, start_response)

    @property
    def options(self) -> dict[str, object]:
        return {
            "AWS_ACCESS_KEY_ID": "an-id",
            "AWS_SECRET_ACCESS_KEY": "hunter2",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.url,
        }


@pytest.fixture(scope="session")
def running_server() -> Iterator[S3Server]:
    server = S3Server()
    listener = make_server("127.0.0.1", 0, server, threaded=False, request_handler=_QuietHandler)
    server.url = f"http://127.0.0.1:{listener.server_port}"
    thread = threading.Thread(target=listener.serve_forever, daemon=True)
    thread.start()
    yield server
    listener.shutdown()
    thread.join()
    listener.server_close()


@pytest.fixture
def server(running_server: S3Server) -> Iterator[S3Server]:
    yield running_server
    running_server.faults.clear()
    running_server.ignores_conditions = False


@pytest.fixture
def bucket(server: S3Server) -> str:
    """A bucket of its own for each test."""
    name = f"bucket-{uuid.uuid4().hex}"
    s3_backends[DEFAULT_ACCOUNT_ID]["aws"].create_bucket(name, "us-east-1")
    server.requests.clear()
    return name
