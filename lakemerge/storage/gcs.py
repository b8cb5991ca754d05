"""Tables on Google Cloud Storage, over gcsfs.

gcsfs finds the credentials and holds the connection; the requests are those of the JSON API. Put-if-absent is an upload
with ``ifGenerationMatch=0`` (Cloud Storage, "Request preconditions"). An object is deleted and replaced exactly by the
generation that was listed.
"""

from __future__ import annotations

import datetime as dt
import importlib
import io
import json
import os
import re
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import quote, urlsplit

from lakemerge.errors import InputError, StoreError
from lakemerge.storage.base import FileStat
from lakemerge.storage.cloud_client import CloudClient, Told, errors_of_network, reason
from lakemerge.storage.cloud_options import gcsfs_options
from lakemerge.storage.object_client import Parts
from lakemerge.storage.object_store import BUCKET, ObjectStore, clean_prefix
from mergers.wording import argument

__all__ = ["GCSClient", "GCSStore"]

_NO_BUCKET = re.compile(r"bucket does not exist", re.IGNORECASE)
_FIELDS = "name,size,timeCreated,generation"
_CHECK_ACCOUNT = f"Check the credentials in {argument('storage_options')} (token)"


class GCSClient(CloudClient):
    condition = "ifGenerationMatch=0"
    own_hosts = (".googleapis.com",)
    package, extra = "gcsfs", "gcs"
    remedies: ClassVar[Mapping[str | int, str]] = {
        401: _CHECK_ACCOUNT,
        403: "Let this account list, read, write and delete there (docs/guides/stores.md lists the rights)",
        404: "Check the bucket's name, or create the bucket first",
        410: "The upload is gone, because a rule of the bucket or the store ended it: write again",
        429: "The store is asked too often: wait, and try again",
    }

    def url(self, key: str) -> str:
        return f"gs://{self.bucket}/{key}"

    def host_of_writes(self) -> str:
        return urlsplit(str(self._connect()._location)).hostname or ""

    def look(self, key: str) -> FileStat:
        return _stat(self._json("look up", key, self._request("GET", self._object(key), {"fields": _FIELDS})))

    def read(self, key: str, start: int | None = None, end: int | None = None, *, etag: str | None = None) -> bytes:
        """If the object has another version than that of ``etag``, the error's ``store_code`` is
        ``conditionNotMet``."""
        part = {} if start is None else {"Range": f"bytes={start}-{'' if end is None else end - 1}"}
        query = {"alt": "media", **_generation(etag or "")}
        request = self._request("GET", f"/download{self._object(key)}", query, headers=part)
        answer = self._ask("read", key, request)
        # An emulator ignores the condition, but says what it read.
        if etag is not None and answer.headers.get("X-Goog-Generation", etag) != etag:
            other = Told(412, "conditionNotMet", "the object has another generation", is_other=True)
            raise self._error(other, "read", key)
        return answer.body

    def write(self, key: str, data: bytes) -> None:
        self._ask("write", key, self._upload(key, data, {}))

    def listed(self, prefix: str, start_after: str) -> Iterator[FileStat]:
        query = {"prefix": prefix, "startOffset": start_after, "fields": f"items({_FIELDS}),nextPageToken"}
        for page in self._pages(query):
            found = (_stat(item) for item in page.get("items", ()))
            yield from (file for file in found if file.path != start_after)  # the offset itself is listed, too

    def prefixes(self, prefix: str) -> Iterator[str]:
        for page in self._pages({"prefix": prefix, "delimiter": "/", "fields": "prefixes,nextPageToken"}):
            yield from page.get("prefixes", ())

    def begin(self, key: str) -> Parts:
        query = {"uploadType": "resumable", "name": key}
        answer = self._ask("begin to write", key, self._request("POST", self._uploads(), query, data=b""))
        return _Session(self, key, str(answer.headers["Location"]))

    def send_part(self, key: str, session: str, part: bytes, start: int, total: int | None) -> int:
        """Send bytes of an upload. Returns how many bytes of it the store has now."""
        told = "*" if total is None else str(total)
        headers = {"Content-Range": f"bytes {start}-{start + len(part) - 1}/{told}"}
        answer = self._ask(
            "write a part of", key, self._request("PUT", session, {}, headers=headers, data=part, accepted=_RESUME)
        )
        if answer.status != _RESUME:
            return start + len(part)
        kept = re.fullmatch(r"bytes=0-(\d+)", answer.headers.get("Range", ""))
        return int(kept[1]) + 1 if kept else 0

    def end_parts(self, key: str, session: str) -> None:
        """A session that is gone is ended, too."""
        try:
            self._ask("delete", key, self._request("DELETE", session, {}, accepted=_CANCELLED))
        except FileNotFoundError:
            return

    def _new(self) -> Any:
        # This class, and not gcsfs.GCSFileSystem: the latter asks by gRPC what kind of bucket it is, where emulators
        # and proxies do not answer, and takes minutes.
        file_system = importlib.import_module("gcsfs.core").GCSFileSystem
        return file_system(**self._options, use_listings_cache=False, skip_instance_cache=True)

    def _session(self, connection: Any) -> Any:
        return connection._session

    def _errors(self) -> tuple[type[Exception], ...]:
        auth = importlib.import_module("google.auth.exceptions").GoogleAuthError
        return (_RefusedError, auth, *errors_of_network())

    def _told(self, error: Exception) -> Told:
        if isinstance(error, _RefusedError):
            status = error.answer.status
            code, text = _problem(error.answer.body)
            is_missing = status == 404 and not _NO_BUCKET.search(text)
            return Told(status, code, text, is_missing=is_missing, is_other=status == 412)
        auth = importlib.import_module("google.auth.exceptions").GoogleAuthError
        return Told(None, None, reason(error), was_sent=not isinstance(error, auth))

    def _secrets(self) -> Sequence[str]:
        return ()

    def _create(self, key: str, data: bytes) -> Callable[[Any], Awaitable[object]]:
        return self._upload(key, data, _generation("0"))

    def _replace(self, key: str, data: bytes, etag: str) -> Callable[[Any], Awaitable[object]]:
        return self._upload(key, data, _generation(etag))

    def _delete(self, key: str, etag: str) -> Callable[[Any], Awaitable[object]]:
        return self._request("DELETE", self._object(key), _generation(etag))

    def _upload(self, key: str, data: bytes, condition: Mapping[str, str]) -> Callable[[Any], Awaitable[_Answer]]:
        # As gcsfs does it. Emulators ignore the condition of the simpler uploadType=media.
        border = uuid.uuid4().hex
        head = f"--{border}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{json.dumps({'name': key})}\r\n"
        head += f"--{border}\r\nContent-Type: application/octet-stream\r\n\r\n"
        body = b"".join((head.encode(), data, f"\r\n--{border}--".encode()))
        headers = {"Content-Type": f"multipart/related; boundary={border}"}
        return self._request(
            "POST", self._uploads(), {"uploadType": "multipart", **condition}, headers=headers, data=body
        )

    def _pages(self, query: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        given = {name: value for name, value in query.items() if value}
        path = f"/storage/v1/b/{quote(self.bucket, safe='')}/o"
        while True:
            page = self._json("list", query["prefix"], self._request("GET", path, given))
            yield page
            if not page.get("nextPageToken"):
                return
            given["pageToken"] = str(page["nextPageToken"])

    def _json(self, operation: str, key: str, request: Callable[[Any], Awaitable[_Answer]]) -> dict[str, Any]:
        answer = self._ask(operation, key, request)
        try:
            found = json.loads(answer.body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise StoreError(f"{operation} {self.url(key)}: the answer is no JSON object", url=self.url(key))
        return found

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
        accepted: int = 200,
    ) -> Callable[[Any], Awaitable[_Answer]]:
        """:param accepted: a status that is no refusal, in addition to those of success."""
        kind = {} if data is None else {"Content-Type": "application/octet-stream"}

        async def answer(connection: Any) -> _Answer:
            session = await connection._set_session()
            session._retry_connection = False  # aiohttp repeats a PUT whose connection ends; there is no setting
            async with session.request(
                method,
                path if path.startswith("http") else connection._location + path,
                params=connection._get_params(query),
                headers=connection._get_headers({**kind, **(headers or {})}),
                data=None if data is None else io.BytesIO(data),  # aiohttp warns of large bytes
                timeout=connection.requests_timeout,
                allow_redirects=False,
            ) as response:
                found = _Answer(response.status, response.headers, await response.read())
            if not 200 <= found.status < 300 and found.status != accepted:
                raise _RefusedError(found)
            return found

        return answer

    def _object(self, key: str) -> str:
        return f"/storage/v1/b/{quote(self.bucket, safe='')}/o/{quote(key, safe='')}"

    def _uploads(self) -> str:
        return f"/upload/storage/v1/b/{quote(self.bucket, safe='')}/o"


_RESUME = 308
"""The status of an answer that waits for more parts."""
_CANCELLED = 499
"""The status of the answer to the end of an upload. After any other request it says nothing."""


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


class _RefusedError(Exception):
    def __init__(self, answer: _Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


class _Session:
    """An upload in parts. Its address is a right to write, so it is shown nowhere."""

    def __init__(self, client: GCSClient, key: str, session: str) -> None:
        self._client, self._key, self._session = client, key, session
        self._sent = 0

    def send(self, part: bytes) -> None:
        self._send(part, None)

    def finish(self, last: bytes) -> None:
        self._send(last, self._sent + len(last))

    def abort(self) -> None:
        self._client.end_parts(self._key, self._session)

    def _send(self, part: bytes, total: int | None) -> None:
        """The store may keep fewer bytes than were sent."""
        end = self._sent + len(part)
        while self._sent < end:
            rest = part[len(part) - (end - self._sent) :]
            kept = self._client.send_part(self._key, self._session, rest, self._sent, total)
            if kept <= self._sent:
                url = self._client.url(self._key)
                raise StoreError(f"write {url}: the store keeps none of the bytes that it is sent", url=url)
            self._sent = kept


class GCSStore(ObjectStore[GCSClient]):
    """A prefix of a bucket: ``gs://bucket/prefix`` (or ``gcs://``).

    ``storage_options``: gcsfs's ``token`` (a file, a mapping or its JSON text, or one of gcsfs's words), ``project``,
    ``access``, ``endpoint_url``, ``requester_pays``, ``requests_timeout``, ``session_kwargs``. Without ``token`` each
    process looks for Google's default credentials, workload identity among them. ``STORAGE_EMULATOR_HOST`` of the
    process that makes the store is the ``endpoint_url`` if there is none.
    """

    wrong_token = "1"  # noqa: S105 - no secret

    def __init__(self, url: str, storage_options: Mapping[str, object] | None = None) -> None:
        bucket, _, prefix = url.partition("://")[2].partition("/")
        if not BUCKET.fullmatch(bucket):
            # The error does not show the URL, because people put credentials in front of the bucket.
            raise InputError(
                "a URL of Google Cloud Storage is gs://bucket/prefix with a plain bucket name; credentials go into "
                f"{argument('storage_options')}"
            )
        self._options = gcsfs_options(storage_options or {}, os.environ)
        super().__init__(GCSClient(bucket, self._options), clean_prefix(prefix))

    def __reduce__(self) -> tuple[type[GCSStore], tuple[str, dict[str, Any]]]:
        return type(self), (self.url, self._options)


def _generation(token: str) -> dict[str, str]:
    return {"ifGenerationMatch": token} if token else {}


def _stat(item: Mapping[str, Any]) -> FileStat:
    created = dt.datetime.fromisoformat(str(item["timeCreated"]))
    return FileStat(
        str(item["name"]), int(item.get("size", 0)), int(created.timestamp() * 1000), str(item["generation"])
    )


def _problem(body: bytes) -> tuple[str | None, str]:
    """Code and text of an answer that is a refusal. Those of downloads are plain text."""
    text = body.decode(errors="replace").strip()
    try:
        error = json.loads(text)["error"]
        if isinstance(error, str):
            return None, error
        reasons = [str(one["reason"]) for one in error.get("errors", ()) if one.get("reason")]
        return (reasons[0] if reasons else None), str(error.get("message", ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, text.splitlines()[0] if text else "no text"
