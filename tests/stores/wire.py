"""The protocols of Google's and Azure's stores for the scripted server in memory.

They have what the clients use, in the words of the services' references: "Cloud Storage JSON API" and "Blob service
REST API". Azure's can be one with a hierarchical namespace, which no emulator speaks: as its reference says, folders
are blobs of their own, which carry ``hdi_isfolder``, come in listings before what is in them, and stay when it goes.
"""

# ruff: noqa: N802 - the names of http.server

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from tests.s3.wire import Object, Wire, WireHandler, instant, wire_server

__all__ = ["ACCOUNT", "ACCOUNT_KEY", "WireAzure", "WireGCS", "azure_wire_server", "gcs_wire_server"]

ACCOUNT = "wireaccount"
ACCOUNT_KEY = base64.b64encode(b"a key of an account that exists nowhere").decode()


@dataclass
class WireGCS(Wire):
    busy: dict[str, float] = field(default_factory=dict)
    """Name -> when it was written."""
    seconds: Callable[[], float] | None = None
    """A clock. With it an object can be written once in a second, as on GCS."""
    short: int = 0
    """So many bytes less than it got does the server keep of the next part of an upload."""

    @property
    def options(self) -> dict[str, object]:
        return {"token": "anon", "endpoint_url": self.url}

    def quick(self, read_timeout: float) -> dict[str, object]:
        return {**self.options, "requests_timeout": read_timeout}

    def token(self, there: Object) -> str:
        return str(there.generation)

    def is_busy(self, name: str) -> bool:
        if self.seconds is None:
            return False
        now = self.seconds()
        is_busy = now - self.busy.get(name, -1) < 1
        if not is_busy:
            self.busy[name] = now
        return is_busy


class _GCSHandler(WireHandler):
    wire: WireGCS

    def do_POST(self) -> None:
        data, query = self.body(), self.query()
        if query["uploadType"] == "multipart":
            border = (self.headers.get("Content-Type") or "").partition("boundary=")[2].encode()
            _, resource, content = data.removesuffix(b"\r\n--" + border + b"--").split(b"--" + border + b"\r\n", 2)
            query |= json.loads(resource.partition(b"\r\n\r\n")[2])
            data = content.partition(b"\r\n\r\n")[2]
        name = f"{self._bucket()}/{query['name']}"
        generation = query.get("ifGenerationMatch")
        if self.wire.is_busy(name):
            return self.answer(429)
        if query["uploadType"] == "resumable":
            upload = f"upload-{len(self.wire.uploads)}-{time.monotonic_ns()}"
            self.wire.uploads[upload] = (name, {})
            return self.answer(200, headers={"Location": f"{self.wire.url}/sessions?upload_id={upload}"})
        conditions = {
            "if_none_match": "*" if generation == "0" else None,
            "if_match": None if generation == "0" else generation,
        }
        found = self.write(name, data, conditions)
        if found is not None:
            status, _ = found
            self._json(self._resource(name)) if status == 200 else self.answer(status)
        return None

    def do_PUT(self) -> None:
        data, upload = self.body(), self.query()["upload_id"]
        if upload not in self.wire.uploads:
            return self.answer(410)
        name, parts = self.wire.uploads[upload]
        span, _, total = (self.headers.get("Content-Range") or "").removeprefix("bytes ").partition("/")
        start = int(span.partition("-")[0])
        had = sum(map(len, parts.values()))
        kept = data[max(0, had - start) : max(0, len(data) - self.wire.short)]
        self.wire.short = 0
        parts[had] = kept
        had += len(kept)
        if total == "*" or had < int(total):
            return self.answer(308, headers={"Range": f"bytes=0-{had - 1}"} if had else {})
        self.wire.put(name, b"".join(parts[at] for at in sorted(parts)), if_none_match=None, if_match=None)
        del self.wire.uploads[upload]
        return self._json(self._resource(name))

    def do_GET(self) -> None:
        path, query = urlsplit(self.path).path, self.query()
        if path.endswith("/o"):
            return self._list(query)
        name = self._name()
        if self.said(self.wire.answer_to("GET", name)):
            return None
        with self.wire.lock:
            there = self.wire.objects.get(name)
        if there is None:
            return self.answer(404)
        if query.get("ifGenerationMatch", self.wire.token(there)) != self.wire.token(there):
            return self.answer(412)
        return self.ranged(there.data, {}) if query.get("alt") == "media" else self._json(self._resource(name))

    def do_DELETE(self) -> None:
        query = self.query()
        if "upload_id" in query:
            self.wire.uploads.pop(query["upload_id"], None)
            return self.answer(499)
        return self.answer(self.wire.delete(self._name(), query.get("ifGenerationMatch")))

    def refusal(self, status: int) -> bytes:
        reason = {404: "notFound", 412: "conditionNotMet", 429: "rateLimitExceeded", 503: "backendError"}.get(status)
        told = {"code": status, "message": "as told", "errors": [{"reason": reason or "refused", "message": "as told"}]}
        return json.dumps({"error": told}).encode()

    def _list(self, query: dict[str, str]) -> None:
        bucket = self._bucket()
        page = query.get("pageToken", "")
        most = int(query.get("maxResults", "1000"))
        keys, folders, more = self.wire.page(bucket, query.get("prefix", ""), query.get("delimiter", ""), page, most)
        items = [self._resource(f"{bucket}/{key}") for key in keys if key >= query.get("startOffset", "")]
        self._json({"items": items, "prefixes": folders} | ({"nextPageToken": more} if more else {}))

    def _resource(self, name: str) -> dict[str, object]:
        there = self.wire.objects[name]
        created, size = instant(there.at)[:-5] + f".{int(there.at * 1000) % 1000:03}Z", str(len(there.data))
        key = name.partition("/")[2]
        return {"name": key, "size": size, "timeCreated": created, "generation": self.wire.token(there)}

    def _json(self, document: object) -> None:
        self.answer(200, json.dumps(document).encode(), {"Content-Type": "application/json"})

    def _bucket(self) -> str:
        return unquote(urlsplit(self.path).path.partition("/b/")[2].partition("/")[0])

    def _name(self) -> str:
        return f"{self._bucket()}/{unquote(urlsplit(self.path).path.partition('/o/')[2])}"


@dataclass
class WireAzure(Wire):
    has_folders: bool = False
    """Whether it is an account with a hierarchical namespace."""
    folders: set[str] = field(default_factory=set)

    @property
    def options(self) -> dict[str, object]:
        scheme, _, address = self.url.partition("://")
        return {
            "connection_string": f"DefaultEndpointsProtocol={scheme};AccountName={ACCOUNT};AccountKey={ACCOUNT_KEY};"
            f"BlobEndpoint={scheme}://{address}/{ACCOUNT};"
        }

    def quick(self, read_timeout: float) -> dict[str, object]:
        return {**self.options, "read_timeout": read_timeout}

    def token(self, there: Object) -> str:
        return f"0x{there.generation:X}"

    def put(self, name: str, data: bytes, *, if_none_match: str | None, if_match: str | None) -> tuple[int, str]:
        if name in self.folders:
            return 409, ""
        status, token = super().put(name, data, if_none_match=if_none_match, if_match=if_match)
        if status == 200 and self.has_folders:
            parts = name.split("/")
            self.folders |= {"/".join(parts[:number]) for number in range(2, len(parts))}
        return (409 if if_none_match == "*" and status == 412 else 201 if status == 200 else status), token

    def delete_folder(self, name: str) -> int:
        with self.lock:
            if any(other.startswith(f"{name}/") for other in {*self.objects, *self.folders}):
                return 409
            self.folders.discard(name)
            return 202


class _AzureHandler(WireHandler):
    wire: WireAzure
    _code = ""

    def do_PUT(self) -> None:
        data, name, query = self.body(), self._name(), self.query()
        if query.get("comp") == "block":
            self.wire.uploads.setdefault(name, (name, {}))[1][int(base64.b64decode(query["blockid"])[-8:])] = data
            return self.answer(201)
        if query.get("comp") == "blocklist":
            numbers = [int(base64.b64decode(block.text or "")[-8:]) for block in ElementTree.fromstring(data)]  # noqa: S314
            parts = self.wire.uploads.pop(name)[1]
            data = b"".join(parts[number] for number in numbers)
        conditions = {"if_none_match": self.headers.get("If-None-Match"), "if_match": self.headers.get("If-Match")}
        found = self.write(name, data, conditions)
        if found is not None:
            status, token = found
            there = self.wire.objects.get(name)
            self._code = "BlobAlreadyExists" if status == 409 else ""
            self.answer(status, headers=self._facts(there) if there and token else {})
        return None

    def do_GET(self) -> None:
        query = self.query()
        if query.get("comp") == "list":
            return self._list(query)
        name = self._name()
        if self.said(self.wire.answer_to(self.command, name)):
            return None
        with self.wire.lock:
            there = self.wire.objects.get(name)
            if name in self.wire.folders:
                there = Object(b"", 0)
        if there is None:
            return self.answer(404)
        match = self.headers.get("If-Match")
        if match is not None and match.strip('"') != self.wire.token(there):
            return self.answer(412)
        headers = self._facts(there) | ({"x-ms-meta-hdi_isfolder": "true"} if name in self.wire.folders else {})
        if self.command == "HEAD":
            self.send_response(200)
            for header, value in {**headers, "Content-Length": str(len(there.data))}.items():
                self.send_header(header, value)
            self.end_headers()
            return None
        return self.ranged(there.data, headers)

    do_HEAD = do_GET  # noqa: N815

    def do_DELETE(self) -> None:
        name = self._name()
        if name in self.wire.folders:
            self._code = "DirectoryIsNotEmpty"
            return self.answer(self.wire.delete_folder(name))
        status = self.wire.delete(name, self.headers.get("If-Match"))
        return self.answer(202 if status == 204 else status)

    def answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:  # type: ignore[override]
        if status >= 400:
            headers = {**(headers or {}), "x-ms-error-code": self._word(status), "Content-Type": "application/xml"}
        super().answer(status, body, headers)
        self._code = ""

    def refusal(self, status: int) -> bytes:
        return f"<Error><Code>{self._word(status)}</Code><Message>as told</Message></Error>".encode()

    def _word(self, status: int) -> str:
        words = {403: "AuthorizationFailure", 404: "BlobNotFound", 409: "BlobAlreadyExists", 412: "ConditionNotMet"}
        return self._code or words.get(status, "ServerBusy" if status == 503 else "Refused")

    def _list(self, query: dict[str, str]) -> None:
        container = self._name().partition("/")[0]
        prefix, sign = query.get("prefix", ""), query.get("delimiter", "")
        most = int(query.get("maxresults", "5000"))
        keys, folders, more = self.wire.page(container, prefix, sign, query.get("marker", ""), most)
        if self.wire.has_folders and not sign:
            own = {name.partition("/")[2] for name in self.wire.folders if name.startswith(f"{container}/")}
            keys = sorted({*keys, *(key for key in own if key.startswith(prefix))}, key=lambda key: key.split("/"))
        rows = "".join(self._entry(container, key) for key in keys)
        rows += "".join(f"<BlobPrefix><Name>{escape(name)}</Name></BlobPrefix>" for name in folders)
        self.answer(
            200,
            f'<EnumerationResults ContainerName="{container}"><Blobs>{rows}</Blobs>'
            f"<NextMarker>{escape(more)}</NextMarker></EnumerationResults>".encode(),
            {"Content-Type": "application/xml"},
        )

    def _entry(self, container: str, key: str) -> str:
        is_folder = f"{container}/{key}" in self.wire.folders
        there = Object(b"", 0) if is_folder else self.wire.objects[f"{container}/{key}"]
        metadata = "<Metadata><hdi_isfolder>true</hdi_isfolder></Metadata>" if is_folder else "<Metadata />"
        return (
            f"<Blob><Name>{escape(key)}</Name><Properties><Last-Modified>{formatdate(there.at, usegmt=True)}"
            f"</Last-Modified><Etag>{self.wire.token(there)}</Etag><Content-Length>{len(there.data)}</Content-Length>"
            f"<BlobType>BlockBlob</BlobType></Properties>{metadata}</Blob>"
        )

    def _facts(self, there: Object) -> dict[str, str]:
        return {
            "ETag": f'"{self.wire.token(there)}"',
            "Last-Modified": formatdate(there.at, usegmt=True),
            "x-ms-blob-type": "BlockBlob",
            "x-ms-request-server-encrypted": "true",
        }

    def _name(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix(f"/{ACCOUNT}/")


@contextmanager
def gcs_wire_server() -> Iterator[WireGCS]:
    with wire_server(WireGCS(), _GCSHandler) as wire:
        yield wire


@contextmanager
def azure_wire_server() -> Iterator[WireAzure]:
    with wire_server(WireAzure(), _AzureHandler) as wire:
        yield wire
