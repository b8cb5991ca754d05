"""A small S3 in memory, on the loopback address, whose answers are scripted.

It keeps S3's promises: each request is carried out at once or not at all, and conditions are checked in the same step.
What a script changes is the way of the answer back: whether the request is carried out, when, and what the client
hears of it. No store answers success to a write that it never carries out, so no script says that.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

__all__ = ["Answer", "Object", "WireS3", "wire_server"]

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
    """Whether it is carried out. ``afterwards``: by :meth:`WireS3.deliver`, when the client has given up long ago."""
    says: int | Literal["the truth", "closed", "late"]
    """A status; or what the store has to say; or the connection ends without an answer; or the truth is told when the
    client waits no more."""

    def __str__(self) -> str:
        return f"done {self.does}, says {self.says}"


@dataclass(frozen=True, slots=True)
class Object:
    data: bytes
    at: float

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.data, usedforsecurity=False).hexdigest()}"'


@dataclass
class WireS3:
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
    uploads: dict[str, tuple[str, dict[int, bytes]]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    given_up: threading.Event = field(default_factory=threading.Event)
    """Set to let answers go that are late."""
    _afterwards: list[Callable[[], object]] = field(default_factory=list)

    @property
    def options(self) -> dict[str, object]:
        return {"key": "an-id", "secret": "hunter2", "endpoint_url": self.url, "region_name": "us-east-1"}

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
            if if_match is not None and there is not None and there.etag.strip('"') != if_match.strip('"'):
                return 412, ""
            made = Object(data, time.time())
            self.objects[name] = made
            return 200, made.etag

    def delete(self, name: str, if_match: str | None) -> int:
        with self.lock:
            there = self.objects.get(name)
            if there is not None and if_match is not None and there.etag.strip('"') != if_match.strip('"'):
                return 412
            self.objects.pop(name, None)
            return 204


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body of an answer go out together
    wire: WireS3

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        pass

    def handle_expect_100(self) -> bool:
        going_on = super().handle_expect_100()
        self.wfile.flush()
        return going_on

    def do_PUT(self) -> None:
        data, name, query = self._body(), self._name(), self._query()
        if "uploadId" in query:
            return self._part(query, data)
        conditions = {"if_none_match": self.headers.get("If-None-Match"), "if_match": self.headers.get("If-Match")}
        answer = self.wire.answer_to("PUT", name)

        def do() -> tuple[int, str]:
            return self.wire.put(name, data, **conditions)

        status, etag = 200, ""
        if answer.does == "now":
            status, etag = do()
        elif answer.does == "afterwards":
            self.wire.put_off(do)
        if not self._said(answer):
            self._answer(status, headers={"ETag": etag} if status == 200 else {})
        return None

    def do_GET(self) -> None:
        query = self._query()
        if "list-type" in query:
            return self._list(query)
        if "uploads" in query:
            return self._list_uploads(query)
        if self._said(self.wire.answer_to(self.command, self._name())):
            return None
        with self.wire.lock:
            there = self.wire.objects.get(self._name())
        if there is None:
            return self._answer(404)
        match = self.headers.get("If-Match")
        if match is not None and match.strip('"') != there.etag.strip('"'):
            return self._answer(412)
        headers = {"ETag": there.etag, "Last-Modified": formatdate(there.at, usegmt=True)}
        part = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range") or "")
        if part is None:
            return self._answer(200, there.data, headers)
        size = len(there.data)
        begin = int(part[1]) if part[1] else max(0, size - int(part[2]))
        end = min(size, int(part[2]) + 1) if part[1] and part[2] else size
        if begin >= size:
            return self._answer(416)
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
        return self._answer(206, there.data[begin:end], headers)

    do_HEAD = do_GET  # noqa: N815

    def do_DELETE(self) -> None:
        query = self._query()
        if "uploadId" in query:
            self.wire.uploads.pop(query["uploadId"], None)
            return self._answer(204)
        return self._answer(self.wire.delete(self._name(), self.headers.get("If-Match")))

    def do_POST(self) -> None:
        data, query, name = self._body(), self._query(), self._name()
        if "uploads" in query:
            upload = f"upload-{len(self.wire.uploads)}-{time.monotonic_ns()}"
            self.wire.uploads[upload] = (name, {})
            return self._xml("InitiateMultipartUploadResult", f"<UploadId>{upload}</UploadId>")
        if "uploadId" in query:
            parts = self.wire.uploads.pop(query["uploadId"])[1]
            _, etag = self.wire.put(name, b"".join(parts[n] for n in sorted(parts)), if_none_match=None, if_match=None)
            return self._xml("CompleteMultipartUploadResult", f"<ETag>{escape(etag)}</ETag>")
        errors = []
        for each in ElementTree.fromstring(data):  # noqa: S314 - our own client's request
            told = {child.tag.rpartition("}")[2]: child.text or "" for child in each}
            if "Key" in told and self.wire.delete(f"{self._bucket()}/{told['Key']}", told.get("ETag")) == 412:
                errors.append(f"<Error><Key>{escape(told['Key'])}</Key><Code>PreconditionFailed</Code></Error>")
        return self._xml("DeleteResult", "".join(errors))

    def _part(self, query: Mapping[str, str], data: bytes) -> None:
        self.wire.uploads[query["uploadId"]][1][int(query["partNumber"])] = data
        self._answer(200, headers={"ETag": Object(data, 0).etag})

    def _list(self, query: Mapping[str, str]) -> None:
        bucket = self._bucket()
        after = max(query.get("start-after", ""), query.get("continuation-token", "")).encode()
        with self.wire.lock:
            all_objects = dict(self.wire.objects)
        own = {name.partition("/")[2]: at for name, at in all_objects.items() if name.startswith(f"{bucket}/")}
        prefix, sign = query.get("prefix", ""), query.get("delimiter", "")
        keys = sorted((key for key in own if key.startswith(prefix) and key.encode() > after), key=str.encode)
        ends = {key: key.find(sign, len(prefix)) + 1 if sign else 0 for key in keys}
        folders = {} if after else dict.fromkeys(key[:end] for key, end in ends.items() if end)
        keys = [key for key in keys if not ends[key]]
        most = int(query.get("max-keys", "1000"))
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{_instant(own[key].at)}</LastModified>"
            f"<ETag>{escape(own[key].etag)}</ETag><Size>{len(own[key].data)}</Size></Contents>"
            for key in keys[:most]
        )
        rows += "".join(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in folders)
        more = len(keys) > most
        token = f"<NextContinuationToken>{escape(keys[most - 1])}</NextContinuationToken>" if more else ""
        self._xml("ListBucketResult", f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{rows}")

    def _list_uploads(self, query: Mapping[str, str]) -> None:
        prefix = f"{self._bucket()}/{query.get('prefix', '')}"
        rows = "".join(
            f"<Upload><Key>{escape(name.partition('/')[2])}</Key><UploadId>{upload}</UploadId>"
            f"<Initiated>{_instant(time.time())}</Initiated></Upload>"
            for upload, (name, _) in self.wire.uploads.items()
            if name.startswith(prefix)
        )
        self._xml("ListMultipartUploadsResult", f"<IsTruncated>false</IsTruncated>{rows}")

    def _said(self, answer: Answer) -> bool:
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
        self._answer(answer.says)
        return True

    def _answer(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        if status >= 400 and self.command != "HEAD":
            body = f"<Error><Code>{_CODES.get(status, 'Refused')}</Code><Message>as told</Message></Error>".encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _xml(self, root: str, inner: str) -> None:
        self._answer(200, f"<{root}>{inner}</{root}>".encode(), {"Content-Type": "application/xml"})

    def _name(self) -> str:
        return unquote(urlsplit(self.path).path).lstrip("/")

    def _bucket(self) -> str:
        return self._name().partition("/")[0]

    def _query(self) -> dict[str, str]:
        found = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        return {name: values[0] for name, values in found.items()}

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


def _instant(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(at))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that gave up is no error."""


@contextmanager
def wire_server() -> Iterator[WireS3]:
    wire = WireS3()
    handler = type("Handler", (_Handler,), {"wire": wire})
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
