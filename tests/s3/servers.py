"""S3 servers for tests: moto behind werkzeug, one request at a time, and versitygw, a real server over a folder.

moto looks for the object and then stores it, so with the usual server, a thread per request, its
``If-None-Match`` is a race of its own. A server with one thread answers as S3 does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

from benchmarks.versitygw import versitygw

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

__all__ = [
    "INTRUDER",
    "KEY",
    "REFUSED",
    "SECRET",
    "Endpoint",
    "Fault",
    "S3Server",
    "answering",
    "moto_server",
    "versitygw_server",
]

KEY, SECRET = "an-id", "hunter2"
INTRUDER = "an-intruder"
"""A key that every server refuses."""
REFUSED = r"\((InvalidAccessKeyId|XAdminUserNotFound)\)"
"""With these codes: that of Amazon, which the one with moto gives as well, and that of versitygw."""

Fault = Callable[["S3Server", "WSGIEnvironment", "StartResponse"], Iterable[bytes]]


@dataclass
class Endpoint:
    """A server that runs."""

    url: str = ""

    @property
    def options(self) -> dict[str, object]:
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.url,
        }


class _QuietHandler(MotoRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002
        pass


@dataclass
class S3Server(Endpoint):
    """Passes requests on to moto, notes them as ``"PUT /bucket/key"``, and misbehaves when told to.

    Each entry of ``faults`` is used up by one ``PUT``, which it answers in place of moto.
    """

    moto: WSGIApplication = field(default_factory=lambda: DomainDispatcherApplication(create_backend_app))
    requests: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    ignores_conditions: bool = False

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        query = f"?{environ['QUERY_STRING']}" if environ.get("QUERY_STRING") else ""
        self.requests.append(f"{environ['REQUEST_METHOD']} {unquote(environ['PATH_INFO'])}{query}")
        if self.ignores_conditions:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        if f"Credential={INTRUDER}/" in environ.get("HTTP_AUTHORIZATION", ""):
            return answering("403 Forbidden", "InvalidAccessKeyId")(self, environ, start_response)
        if self.faults and environ["REQUEST_METHOD"] == "PUT":
            return self.faults.pop(0)(self, environ, start_response)
        return self.moto(environ, start_response)


def answering(status: str, code: str = "", *, after_writing: bool = False) -> Fault:
    def fault(server: S3Server, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if after_writing:
            list(server.moto(environ, lambda *_: lambda _: None))
        else:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        start_response(status, [("Content-Type", "application/xml")])
        return [f"<Error><Code>{code}</Code><Message>as told</Message></Error>".encode()]

    return fault


@contextmanager
def moto_server() -> Iterator[S3Server]:
    server = S3Server()
    listener = make_server("127.0.0.1", 0, server, threaded=False, request_handler=_QuietHandler)
    server.url = f"http://127.0.0.1:{listener.server_port}"
    thread = threading.Thread(target=listener.serve_forever, daemon=True)
    thread.start()
    yield server
    listener.shutdown()
    thread.join()
    listener.server_close()


@contextmanager
def versitygw_server(program: str, folder: Path) -> Iterator[Endpoint]:
    """``program`` is a versitygw; its buckets are folders below ``folder``."""
    with versitygw(program, folder, key=KEY, secret=SECRET) as port:
        yield Endpoint(f"http://127.0.0.1:{port}")
