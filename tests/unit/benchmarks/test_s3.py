"""The proxy that counts requests: what it passes on, what it notes, and how many round trips wait for each other."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from benchmarks.cases.s3_proxy import Proxy, Request, depth, proxied


def request(began: float, ended: float) -> Request:
    return Request("GET", "/", began, ended, 0, 0)


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([], 0),
        ([(0, 1), (0, 1), (0, 1)], 1),
        ([(0, 1), (1, 2), (2, 3)], 3),
        ([(0, 5), (0, 1), (1, 2), (2, 3)], 3),  # three small ones beside a long one
        ([(2, 3), (0, 1), (0.5, 2.5)], 2),  # the third begins before the second ends, and ends after it began
    ],
)
def test_depth_is_the_longest_chain(spans: list[tuple[float, float]], expected: int) -> None:
    assert depth([request(*span) for span in spans]) == expected


class Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, f"{self.headers['Host']} {self.path} {len(body)}".encode())

    def do_GET(self) -> None:
        self._answer(206, b"x" * (20_000_000 if self.path == "/huge" else 100_000))

    def do_HEAD(self) -> None:
        self.send_response(404)
        self.send_header("Content-Length", "17")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"abc"')
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    with HTTPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with proxied("127.0.0.1", server.server_port, delay_s=0.01) as proxy:
            yield proxy
        server.shutdown()


def test_requests_pass_and_are_noted(proxy: Proxy) -> None:
    host = proxy.url.partition("://")[2]
    connection = http.client.HTTPConnection(host, timeout=30)
    connection.request("PUT", "/bucket/key?part=1", b"12345", {"Expect": "100-continue"})
    assert connection.getresponse().read() == f"{host} /bucket/key?part=1 5".encode()
    connection.request("PUT", "/chunks", iter([b"123", b"4567"]), encode_chunked=True)
    assert connection.getresponse().read() == f"{host} /chunks 7".encode()
    connection.request("GET", "/large")
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("ETag"), len(answer.read())) == (206, '"abc"', 100_000)
    connection.request("HEAD", "/none")
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("Content-Length"), answer.read()) == (404, "17", b"")
    connection.close()
    noted = proxy.taken()
    assert [(r.method, r.path, r.sent) for r in noted] == [
        ("PUT", "/bucket/key?part=1", 5),
        ("PUT", "/chunks", 7),
        ("GET", "/large", 0),
        ("HEAD", "/none", 0),
    ]
    assert [r.received for r in noted[2:]] == [100_000, 0]
    assert all(r.ended - r.began >= 0.01 for r in noted)
    assert depth(noted) == 4
    assert proxy.taken() == []


def test_a_client_that_leaves_is_noted(proxy: Proxy) -> None:
    host, _, port = proxy.url.partition("://")[2].partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as left:
        left.sendall(b"GET /huge HTTP/1.1\r\nHost: x\r\n\r\n")
        left.recv(100)
    deadline = time.monotonic() + 30
    while not (noted := proxy.taken()) and time.monotonic() < deadline:
        time.sleep(0.01)
    (only,) = noted
    assert (only.method, only.path) == ("GET", "/huge")
    assert 0 < only.received < 20_000_000
