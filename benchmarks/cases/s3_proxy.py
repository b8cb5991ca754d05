"""A proxy before an S3 server that makes each request wait, and notes all of them.

It stands for the way to a real object store: whatever a program asks for takes at least the delay, and what it asked
for is counted by somebody else than the program. It runs in a process of its own.
"""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import ClassVar, NamedTuple

__all__ = ["Proxy", "Request", "depth", "proxied"]

_NOT_PASSED_ON = {"connection", "keep-alive", "transfer-encoding", "expect"}
_CHUNK = 1 << 16


class Request(NamedTuple):
    """One request, as the proxy saw it."""

    method: str
    path: str
    began: float
    """Seconds of a clock that all requests share."""
    ended: float
    sent: int
    """Bytes of the request's body."""
    received: int
    """Bytes of the answer's body."""


def depth(requests: Sequence[Request]) -> int:
    """The number of round trips that waited for each other: the longest chain of requests, none beside another."""
    chain, free = 0, float("-inf")
    for request in sorted(requests, key=lambda one: one.ended):
        if request.began >= free:
            chain, free = chain + 1, request.ended
    return chain


class Proxy:
    """A proxy that runs."""

    def __init__(self, url: str, pipe: Connection) -> None:
        self.url = url
        self._pipe = pipe

    def taken(self) -> list[Request]:
        """The requests since the last call."""
        self._pipe.send("take")
        return [Request(*fields) for fields in self._pipe.recv()]


@contextmanager
def proxied(host: str, port: int, *, delay_s: float) -> Iterator[Proxy]:
    """A proxy before the server at ``host`` and ``port``. Each request waits ``delay_s`` seconds."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(host, port, delay_s, theirs), daemon=True)
    process.start()
    try:
        if not ours.poll(60):
            raise AssertionError("the proxy did not start within a minute")
        yield Proxy(f"http://127.0.0.1:{ours.recv()}", ours)
    finally:
        process.terminate()
        process.join(30)


def _serve(host: str, port: int, delay_s: float, pipe: Connection) -> None:
    noted: list[Request] = []
    lock = threading.Lock()

    class Handler(_Handler):
        upstream = (host, port)
        delay = delay_s

        def note(self, request: Request) -> None:
            with lock:
                noted.append(request)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    pipe.send(server.server_port)
    while pipe.recv() == "take":
        with lock:
            told, noted[:] = [tuple(request) for request in noted], []
        pipe.send(told)


class _Handler(BaseHTTPRequestHandler, ABC):
    """Passes on one connection's requests over one connection to the server."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = _CHUNK
    upstream: ClassVar[tuple[str, int]]
    delay: ClassVar[float]

    def setup(self) -> None:
        super().setup()
        self._server = http.client.HTTPConnection(*self.upstream, timeout=120)

    def finish(self) -> None:
        with contextlib.suppress(ConnectionError):  # the client has left
            super().finish()
        self._server.close()

    @abstractmethod
    def note(self, request: Request) -> None:
        """Take down a request that was passed on."""

    def handle_expect_100(self) -> bool:
        """What is buffered would not leave before the client's body is there, which waits for it."""
        going_on = super().handle_expect_100()
        self.wfile.flush()
        return going_on

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that http.server gives it
        pass

    def _pass_on(self) -> None:
        began = time.monotonic()
        body = self._body()
        time.sleep(self.delay)
        # The signature covers the header Host: it stays what the client sent.
        self._server.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in _NOT_PASSED_ON:
                self._server.putheader(name, value)
        if body and "content-length" not in self.headers:
            self._server.putheader("Content-Length", str(len(body)))
        self._server.endheaders(body)
        answer = self._server.getresponse()
        self.send_response_only(answer.status, answer.reason)
        known = answer.getheader("Content-Length") is not None
        for name, value in answer.getheaders():
            if name.lower() not in _NOT_PASSED_ON:
                self.send_header(name, value)
        received = 0
        try:
            if known or self.command == "HEAD":
                self.end_headers()
                while part := answer.read(_CHUNK):
                    self.wfile.write(part)
                    received += len(part)
            else:
                whole = answer.read()
                received = len(whole)
                self.send_header("Content-Length", str(received))
                self.end_headers()
                self.wfile.write(whole)
        except ConnectionError:  # a client may leave in the middle of an answer; Iceberg's does
            self.close_connection = True
        self.note(Request(self.command, self.path, began, time.monotonic(), len(body), received))
        with contextlib.suppress(ConnectionError):
            self.wfile.flush()  # after it was noted: who has the whole answer may ask for what was noted

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(parts)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on  # noqa: N815 - the names that http.server calls
