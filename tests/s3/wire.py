"""A small store in memory, on the loopback address, whose answers are scripted; and S3's protocol for it.

It keeps the promises of such a store: each request is carried out at once or not at all, and conditions are checked in
the same step.
What a script changes is the way of the answer back: whether the request is carried out, when, and what the client
hears of it. No store answers success to a write that it never carries out, so no script says that.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

__all__ = ["Answer", "Object", "Wire", "WireHandler", "WireS3", "instant", "s3_wire_server", "wire_server"]

_CODES = {
    400: "InvalidRequest",
    403: "ExpiredToken",
    404: "NoSuchKey",
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    499: "ClientClosedRequest",
    500: "InternalError",
    503: "SlowDown",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What becomes of a request."""

    does: Literal["now", "never", "afterwards"]
    """Whether it is carried out. ``afterwards``: by :meth:`Wire.deliver`, when the client has given up long ago."""
    says: int | Literal["the truth", "closed", "late", "cut"]
    """A status; or what the store has to say; or the connection ends without an answer; or the truth is told when the
    client waits no more; or the connection ends in the middle of an answer."""

    def __str__(self) -> str:
        return f"done {self.does}, says {self.says}"


@dataclass(frozen=True, slots=True)
class Object:
    data: bytes
    at: float
    generation: int = 0
    """No two writes have the same."""

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.data, usedforsecurity=False).hexdigest()}"'


@dataclass
class Wire(ABC):
    """The state of a server. Buckets are there without being made."""

    url: str = ""
    objects: dict[str, Object] = field(default_factory=dict)
    """By bucket and key, with a slash in between."""
    scripted: re.Pattern[str] = field(default_factory=lambda: re.compile(r"/_delta_log/\d{20}\.json$"))
    """The objects that scripts are about."""
    puts: deque[Answer] = field(default_factory=deque)
    """For the next PUTs of such an object, one each. After the last one, all is well."""
    gets: deque[Answer] = field(default_factory=deque)
    """For GETs of such an object: the first one up to the second PUT, the second one up to the third PUT, ..."""
    put_count: int = 0
    """PUTs of such objects."""
    heard: deque[tuple[str, str, Mapping[str, str]]] = field(default_factory=lambda: deque(maxlen=1000))
    """Method, path and headers of the last requests."""
    writes: int = 0
    uploads: dict[str, tuple[str, dict[int, bytes]]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    given_up: threading.Event = field(default_factory=threading.Event)
    """Set to let answers go that are late."""
    _afterwards: list[Callable[[], object]] = field(default_factory=list)

    @property
    @abstractmethod
    def options(self) -> dict[str, object]:
        """The storage options of a client."""

    @abstractmethod
    def quick(self, read_timeout: float) -> dict[str, object]:
        """The same for a client of which nobody below our own loop tries again, and that waits so many seconds."""

    @abstractmethod
    def token(self, there: Object) -> str:
        """What tells the versions of an object apart."""

    def begin(self, objects: Mapping[str, Object], puts: list[Answer], gets: list[Answer]) -> None:
        """Begin anew, with these objects and this script."""
        with self.lock:
            self.objects = dict(objects)
            self.puts, self.gets, self.put_count = deque(puts), deque(gets), 0
            self._afterwards = []

    def deliver(self) -> bool:
        """Carry out what was put off. Returns whether there was anything."""
        with self.lock:
            waiting, self._afterwards = self._afterwards, []
        for do in waiting:
            do()
        return bool(waiting)

    def put_off(self, do: Callable[[], object]) -> None:
        with self.lock:
            self._afterwards.append(do)

    def answer_to(self, method: str, name: str) -> Answer:
        """What becomes of the next such request."""
        truth = Answer("now", "the truth")
        if self.scripted.search(name) is None:
            return truth
        with self.lock:
            if method == "PUT":
                self.put_count += 1
                if self.put_count > 1 and self.gets:
                    self.gets.popleft()
                return self.puts.popleft() if self.puts else truth
            return self.gets[0] if method == "GET" and self.put_count and self.gets else truth

    def put(self, name: str, data: bytes, *, if_none_match: str | None, if_match: str | None) -> tuple[int, str]:
        with self.lock:
            there = self.objects.get(name)
            if if_none_match == "*" and there is not None:
                return 412, ""
            if if_match is not None and there is None:
                return 404, ""
            if if_match is not None and there is not None and self.token(there) != if_match.strip('"'):
                return 412, ""
            self.writes += 1
            made = Object(data, time.time(), self.writes)
            self.objects[name] = made
            return 200, self.token(made)

    def delete(self, name: str, if_match: str | None) -> int:
        with self.lock:
            there = self.objects.get(name)
            if there is not None and if_match is not None and self.token(there) != if_match.strip('"'):
                return 412
            self.objects.pop(name, None)
            return 404 if there is None else 204

    def page(self, bucket: str, prefix: str, sign: str, after: str, most: int) -> tuple[list[str], list[str], str]:
        """Keys after a key, folders up to the sign, and after which key the next page begins, if there is one."""
        with self.lock:
            own = [name.partition("/")[2] for name in self.objects if name.startswith(f"{bucket}/")]
        keys = sorted((key for key in own if key.startswith(prefix) and key.encode() > after.encode()), key=str.encode)
        ends = {key: key.find(sign, len(prefix)) + 1 if sign else 0 for key in keys}
        folders = [] if after else [*dict.fromkeys(key[:end] for key, end in ends.items() if end)]
        keys = [key for key in keys if not ends[key]]
        return keys[:most], folders, keys[most - 1] if len(keys) > most else ""


class WireS3(Wire):
    @property
    def options(self) -> dict[str, object]:
        return {"key": "an-id", "secret": "hunter2", "endpoint_url": self.url, "region_name": "us-east-1"}

    def quick(self, read_timeout: float) -> dict[str, object]:
        config = {"read_timeout": read_timeout, "retries": {"total_max_attempts": 1}}
        return {**self.options, "config_kwargs": config}

    def token(self, there: Object) -> str:
        return hashlib.md5(there.data, usedforsecurity=False).hexdigest()


class WireHandler(BaseHTTPRequestHandler, ABC):
    """What the protocols have in common."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body of an answer go out together
    wire: Wire

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        pass

    def handle_expect_100(self) -> bool:
        going_on = super().handle_expect_100()
        self.wfile.flush()
        return going_on

    def parse_request(self) -> bool:
        is_well = super().parse_request()
        if is_well:
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.wire.heard.append((self.command, self.path, headers))
        return is_well

    def said(self, answer: Answer) -> bool:
        """Whether the client got a scripted answer, or is gone."""
        if answer.says == "closed":
            self.close_connection = True
            return True
        if answer.says == "late":
            self.wire.given_up.wait(30)
            self.close_connection = True
            return True
        if answer.says == "the truth":
            return False
        if answer.says == "cut":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"{" * 10)
            self.close_connection = True
            return True
        self.answer(answer.says)
        return True

    def answer(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        if status >= 400 and self.command != "HEAD":
            body = self.refusal(status)
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def write(self, name: str, data: bytes, conditions: Mapping[str, str | None]) -> tuple[int, str] | None:
        """Carry out a put as the script says: status and token. ``None`` if the client got a scripted answer."""
        answer = self.wire.answer_to("PUT", name)

        def do() -> tuple[int, str]:
            return self.wire.put(name, data, if_none_match=conditions["if_none_match"], if_match=conditions["if_match"])

        found = (200, "")
        if answer.does == "now":
            found = do()
        elif answer.does == "afterwards":
            self.wire.put_off(do)
        return None if self.said(answer) else found

    def query(self) -> dict[str, str]:
        found = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        return {name: values[0] for name, values in found.items()}

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def ranged(self, data: bytes, headers: Mapping[str, str]) -> None:
        """The object, or the part of it that was asked for."""
        part = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range") or self.headers.get("x-ms-range") or "")
        if part is None:
            return self.answer(200, data, headers)
        size = len(data)
        begin = int(part[1]) if part[1] else max(0, size - int(part[2]))
        end = min(size, int(part[2]) + 1) if part[1] and part[2] else size
        if begin >= size:
            return self.answer(416)
        return self.answer(206, data[begin:end], {**headers, "Content-Range": f"bytes {begin}-{end - 1}/{size}"})

    @abstractmethod
    def refusal(self, status: int) -> bytes:
        """The text of an answer that refuses something."""


class _S3Handler(WireHandler):
    def do_PUT(self) -> None:
        data, name, query = self._body(), self._name(), self.query()
        if "uploadId" in query:
            return self._part(query, data)
        conditions = {"if_none_match": self.headers.get("If-None-Match"), "if_match": self.headers.get("If-Match")}
        found = self.write(name, data, conditions)
        if found is not None:
            status, etag = found
            self.answer(status, headers={"ETag": f'"{etag}"'} if status == 200 else {})
        return None

    def do_GET(self) -> None:
        query = self.query()
        if "list-type" in query:
            return self._list(query)
        if "uploads" in query:
            return self._list_uploads(query)
        if self.said(self.wire.answer_to(self.command, self._name())):
            return None
        with self.wire.lock:
            there = self.wire.objects.get(self._name())
        if there is None:
            return self.answer(404)
        match = self.headers.get("If-Match")
        if match is not None and match.strip('"') != there.etag.strip('"'):
            return self.answer(412)
        headers = {"ETag": there.etag, "Last-Modified": formatdate(there.at, usegmt=True)}
        return self.ranged(there.data, headers)

    do_HEAD = do_GET  # noqa: N815

    def do_DELETE(self) -> None:
        query = self.query()
        if "uploadId" in query:
            self.wire.uploads.pop(query["uploadId"], None)
            return self.answer(204)
        status = self.wire.delete(self._name(), self.headers.get("If-Match"))
        return self.answer(204 if status == 404 else status)

    def do_POST(self) -> None:
        data, query, name = self._body(), self.query(), self._name()
        if "uploads" in query:
            upload = f"upload-{len(self.wire.uploads)}-{time.monotonic_ns()}"
            self.wire.uploads[upload] = (name, {})
            return self._xml("InitiateMultipartUploadResult", f"<UploadId>{upload}</UploadId>")
        if "uploadId" in query:
            parts = self.wire.uploads.pop(query["uploadId"])[1]
            _, etag = self.wire.put(name, b"".join(parts[n] for n in sorted(parts)), if_none_match=None, if_match=None)
            return self._xml("CompleteMultipartUploadResult", f"<ETag>&quot;{escape(etag)}&quot;</ETag>")
        errors = []
        for each in ElementTree.fromstring(data):  # noqa: S314 - our own client's request
            told = {child.tag.rpartition("}")[2]: child.text or "" for child in each}
            if "Key" in told and self.wire.delete(f"{self._bucket()}/{told['Key']}", told.get("ETag")) == 412:
                errors.append(f"<Error><Key>{escape(told['Key'])}</Key><Code>PreconditionFailed</Code></Error>")
        return self._xml("DeleteResult", "".join(errors))

    def _part(self, query: Mapping[str, str], data: bytes) -> None:
        self.wire.uploads[query["uploadId"]][1][int(query["partNumber"])] = data
        self.answer(200, headers={"ETag": Object(data, 0).etag})

    def _list(self, query: Mapping[str, str]) -> None:
        bucket = self._bucket()
        after = max(query.get("start-after", ""), query.get("continuation-token", ""))
        most = int(query.get("max-keys", "1000"))
        keys, folders, more = self.wire.page(bucket, query.get("prefix", ""), query.get("delimiter", ""), after, most)
        own = {key: self.wire.objects[f"{bucket}/{key}"] for key in keys}
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{instant(own[key].at)}</LastModified>"
            f"<ETag>{escape(own[key].etag)}</ETag><Size>{len(own[key].data)}</Size></Contents>"
            for key in keys
        )
        rows += "".join(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in folders)
        token = f"<NextContinuationToken>{escape(more)}</NextContinuationToken>" if more else ""
        self._xml("ListBucketResult", f"<IsTruncated>{str(bool(more)).lower()}</IsTruncated>{token}{rows}")

    def _list_uploads(self, query: Mapping[str, str]) -> None:
        prefix = f"{self._bucket()}/{query.get('prefix', '')}"
        rows = "".join(
            f"<Upload><Key>{escape(name.partition('/')[2])}</Key><UploadId>{upload}</UploadId>"
            f"<Initiated>{instant(time.time())}</Initiated></Upload>"
            for upload, (name, _) in self.wire.uploads.items()
            if name.startswith(prefix)
        )
        self._xml("ListMultipartUploadsResult", f"<IsTruncated>false</IsTruncated>{rows}")

    def refusal(self, status: int) -> bytes:
        return f"<Error><Code>{_CODES.get(status, 'Refused')}</Code><Message>as told</Message></Error>".encode()

    def _xml(self, root: str, inner: str) -> None:
        self.answer(200, f"<{root}>{inner}</{root}>".encode(), {"Content-Type": "application/xml"})

    def _name(self) -> str:
        return unquote(urlsplit(self.path).path).lstrip("/")

    def _bucket(self) -> str:
        return self._name().partition("/")[0]

    def _body(self) -> bytes:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "aws-chunked" not in (self.headers.get("Content-Encoding") or ""):
            return data
        whole = bytearray()
        while data:
            head, _, data = data.partition(b"\r\n")
            size = int(head.partition(b";")[0], 16)
            if not size:
                break
            whole += data[:size]
            data = data[size + 2 :]
        return bytes(whole)


def instant(at: float) -> str:
    """As MinIO writes it. The header of one object has whole seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at % 1 * 1000):03}Z"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that gave up is no error."""


W = TypeVar("W", bound=Wire)


@contextmanager
def wire_server(wire: W, handling: type[WireHandler]) -> Iterator[W]:
    """The server of that state, as long as the block runs."""
    handler = type("Handler", (handling,), {"wire": wire})
    server = _Server(("127.0.0.1", 0), handler)
    wire.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield wire
    finally:
        wire.given_up.set()
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def s3_wire_server() -> Iterator[WireS3]:
    with wire_server(WireS3(), _S3Handler) as wire:
        yield wire
