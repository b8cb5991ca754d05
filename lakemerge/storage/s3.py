"""Tables on S3 and on object stores that speak its protocol.

Put-if-absent is one ``PutObject`` with ``If-None-Match: *`` (Amazon S3 user guide, "Conditional writes"). The retries
of botocore, s3fs and aiohttp are switched off for it, so a request is sent once. Still no answer but success proves
anything: whoever commits reads the object back.

Objects are deleted and replaced exactly with ``If-Match`` (user guide, "Conditional deletes"). An endpoint other than
Amazon's is asked once to delete an object of the table under a wrong ETag (``_lakemerge/.conditional-delete``). If it
deletes that object, it ignores the condition, and each object is looked at again just before.

An endpoint that ignores the condition would lose commits. So unless the endpoint is Amazon's, the first put-if-absent
of a store object asks twice to create one empty object of the table (``_lakemerge/.conditional-put``; it asks once if
the object is there already). An endpoint that says yes twice is refused. This shows that the condition is checked; it
cannot show that the check is atomic.
"""

from __future__ import annotations

import builtins
import hashlib
import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa

from lakemerge._internal.cache import Fetched
from lakemerge.errors import InputError, StoreError
from lakemerge.storage.base import FileStat, NothingCreatedError, Put, RangedFile, Store, check_path
from lakemerge.storage.s3_client import CONDITION_FAILED, S3Client
from lakemerge.storage.s3_input import S3Input
from lakemerge.storage.s3_options import s3fs_options
from mergers.logs import logger
from mergers.wording import argument

__all__ = ["S3A", "S3Store", "s3a_of"]


_LOG = logger(__name__)

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]+")
_PROBE = "_lakemerge/.conditional-put"
_DELETE_PROBE = "_lakemerge/.conditional-delete"
_PROBES = frozenset({_PROBE, _DELETE_PROBE})
_NO_ETAG = "0" * 32
_DELETE_BATCH = 1_000
_PART_SIZE_BYTES = 16 << 20
"""All parts but the last have this size, because some stores demand one size. 10 000 parts make 156 GiB."""
_WHOLE_BYTES = 512 << 10
"""A file of at most this size is fetched whole: one more request would take longer than its other bytes."""
_KEPT_BYTES = 32 << 20
"""Such files are kept up to this size in all, because every bucket reads its part of a log file."""
_KEPT_FILE_BYTES = 1 << 10
"""What each of them takes beside its bytes."""


class S3Store(Store):
    """A prefix of a bucket: ``s3://bucket/prefix`` (or ``s3a://``).

    ``storage_options``: s3fs's ``key``, ``secret``, ``token``, ``anon``, ``endpoint_url``, ``profile``,
    ``client_kwargs``, ``config_kwargs``, ``s3_additional_kwargs``, ..., ``addressing_style`` (``path``, ``virtual``
    or ``auto``, which is by path at an ``endpoint_url``), or ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``,
    ``AWS_SESSION_TOKEN``, ``AWS_REGION``, ``AWS_ENDPOINT_URL``, ``AWS_PROFILE``. Missing options are taken from these
    variables of the process that makes the store (:func:`s3fs_options`), and then from botocore's own chain of profile,
    web identity and instance in the process that uses it.

    Failures other than a missing file raise :class:`StoreError`. Objects whose keys are not clean paths (``a//b``,
    folder markers) are not listed. Pickles carry the options, secrets included.
    """

    reads_at_once = 16

    def __init__(
        self,
        url: str,
        storage_options: Mapping[str, object] | None = None,
    ) -> None:
        bucket, self._prefix = _parse_url(url)
        self._options = s3fs_options(storage_options or {}, os.environ)
        self._client = S3Client(bucket, self._options)
        self.s3a: Final[S3A] = s3a_of(bucket, self._options)
        """For Spark's own readers."""
        self._is_checked = False
        self._deletes_exactly: bool | None = None
        self._small = Fetched(_KEPT_BYTES, _KEPT_FILE_BYTES)

    def __repr__(self) -> str:
        return f"S3Store({self.url!r})"

    def __reduce__(self) -> tuple[type[S3Store], tuple[str, dict[str, Any]]]:
        return type(self), (self.url, self._options)

    @property
    def url(self) -> str:
        return f"s3://{self._client.bucket}/{self._prefix}".rstrip("/")

    def spark_url(self, path: str) -> str:
        """The URL has to be read with the options in :attr:`s3a`."""
        return f"{self.s3a.scheme}://{self._client.bucket}/{self._key(path)}"

    def put_if_absent(self, path: str, data: bytes) -> Put:
        key = self._key(path)
        if not self._is_checked:
            try:
                self._is_checked = self._check_endpoint()
            except StoreError as error:
                raise NothingCreatedError(error.message, **error.facts) from error
            if not self._is_checked:
                return Put.UNKNOWN
        return self._client.put_if_absent(key, data)

    def put(self, path: str, data: bytes) -> None:
        self._client.write(self._key(path), data)

    def get(self, path: str) -> bytes:
        return self._client.read(self._key(path))

    def stat(self, path: str) -> FileStat | None:
        try:
            head = self._client.call("head_object", self._key(path))
        except FileNotFoundError:
            return None
        return FileStat(path, int(head["ContentLength"]), _epoch_ms(head), _etag(head))

    def list(self, folder: str, *, start_after: str = "") -> Iterator[FileStat]:
        prefix = f"{self._key(folder)}/" if folder else self._root
        return self._listed(prefix, self._root + start_after if start_after else "")

    def folders(self, folder: str) -> Sequence[str]:
        prefix = f"{self._key(folder)}/" if folder else self._root
        found: builtins.list[str] = []
        position: dict[str, str] = {}
        while True:
            page = self._client.call("list_objects_v2", Prefix=prefix, Delimiter="/", **position)
            found += [str(entry["Prefix"])[len(prefix) :].rstrip("/") for entry in page.get("CommonPrefixes", ())]
            if not page.get("IsTruncated"):
                return sorted(name for name in found if name and _is_clean(name))
            position = {"ContinuationToken": page["NextContinuationToken"]}

    def delete_empty_folders(self, folder: str) -> None:
        """There are no folders. With the root go the objects that tried out what the endpoint can do, which are never
        listed."""
        if not folder:
            self.delete(sorted(_PROBES))

    def sync(self, paths: Sequence[str]) -> None:
        """Nothing but a check of the paths: an acknowledged write is durable, whoever made it."""
        for path in paths:
            check_path(path)

    def delete(self, paths: Sequence[str]) -> None:
        self._delete([{"Key": self._key(path)} for path in paths])

    def delete_exact(self, files: Sequence[FileStat]) -> tuple[FileStat, ...]:
        keys = {self._key(file.path): file for file in files}
        if self._deletes_exactly is None:
            self._deletes_exactly = self._is_amazon() or (bool(files) and self._check_deletes())
        if not self._deletes_exactly:
            changed = tuple(file for file in files if self.stat(file.path) not in (None, file))
            self.delete([file.path for file in files if file not in changed])
            return changed
        failed = self._delete([{"Key": key, "ETag": f'"{file.token}"'} for key, file in keys.items()])
        return tuple(keys[key] for key in failed)

    def replace_exact(self, file: FileStat, data: bytes) -> bool:
        if not self._is_amazon() and self.stat(file.path) != file:
            return False
        return self._client.replace(self._key(file.path), data, etag=file.token)

    def _delete(self, objects: Sequence[Mapping[str, str]]) -> Sequence[str]:
        """Delete the objects. Returns the keys of those that were left because their ETag is another one."""
        changed: builtins.list[str] = []
        for start in range(0, len(objects), _DELETE_BATCH):
            batch = objects[start : start + _DELETE_BATCH]
            answer = self._client.call("delete_objects", Delete={"Objects": batch, "Quiet": True})
            failed = [error for error in answer.get("Errors", ()) if error.get("Code") != "NoSuchKey"]
            changed += [str(error.get("Key")) for error in failed if error.get("Code") in CONDITION_FAILED]
            failed = [error for error in failed if error.get("Code") not in CONDITION_FAILED]
            if failed:
                first = failed[0]
                raise StoreError(
                    f"{len(failed)} objects of {self.url} were not deleted; the first: {first.get('Key')!r}, "
                    f"{first.get('Code')}: {first.get('Message')}",
                    url=self.url,
                    s3_code=first.get("Code"),
                )
        return changed

    def _check_deletes(self) -> bool:
        """Whether the endpoint deletes an object only under its ETag. See the module docstring."""
        key = self._key(_DELETE_PROBE)
        self._client.write(key, b"")
        try:
            refused = self._delete([{"Key": key, "ETag": f'"{_NO_ETAG}"'}]) == [key]
        except StoreError:
            refused = False  # it does not know the field
        is_left = self.stat(_DELETE_PROBE) is not None
        self.delete([_DELETE_PROBE])
        return refused and is_left

    def clean_up(self, *, before_ms: int, dry_run: bool) -> tuple[FileStat, ...]:
        """Ends uploads in parts that were begun and never completed. Their parts are hidden, but take space."""
        found: list[FileStat] = []
        position: dict[str, str] = {}
        while True:
            page = self._client.call("list_multipart_uploads", Prefix=self._root, **position)
            for upload in page.get("Uploads", ()):
                begun_ms, key = int(upload["Initiated"].timestamp() * 1000), str(upload["Key"])
                if begun_ms < before_ms:
                    found.append(FileStat(key[len(self._root) :], 0, begun_ms))
                    if not dry_run:
                        self._client.call("abort_multipart_upload", key, UploadId=upload["UploadId"])
            if not page.get("IsTruncated"):
                return tuple(found)
            position = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def open_input(self, path: str, *, size_bytes: int | None = None) -> pa.NativeFile:
        """With ``size_bytes`` no request is made here, and a missing file is found by the first read. Only files that
        never change are opened with their size: if they are small, they are fetched whole, once."""
        key = self._key(path)
        small = None if size_bytes is None or size_bytes > _WHOLE_BYTES else self._small
        if size_bytes is None:
            size_bytes = int(self._client.call("head_object", key)["ContentLength"])
        return RangedFile(S3Input(self._client, key, size_bytes, small=small), mode="r")

    def open_output(self, path: str) -> AbstractContextManager[pa.NativeFile]:
        return _output(self._client, self._key(path))

    @property
    def _root(self) -> str:
        return f"{self._prefix}/" if self._prefix else ""

    def _key(self, path: str) -> str:
        if "?versionId=" in check_path(path):
            raise InputError(f"{path!r}: s3fs takes '?versionId=' for a version, not for a part of a name", path=path)
        return self._root + path

    def _is_amazon(self) -> bool:
        host = urlsplit(self._client.endpoint_for_conditional_writes()).hostname or ""
        return host.endswith((".amazonaws.com", ".amazonaws.com.cn"))

    def _check_endpoint(self) -> bool:
        """Whether the endpoint is known to check the condition; ``False`` if it could not be asked. See the module
        docstring. Raises :class:`StoreError` if it ignores the condition."""
        if self._is_amazon():
            return True
        host = urlsplit(self._client.endpoint_for_conditional_writes()).hostname or ""
        outcomes = [self._client.put_if_absent(self._root + _PROBE, b"")]
        if outcomes[0] is Put.CREATED:
            outcomes.append(self._client.put_if_absent(self._root + _PROBE, b""))
        if outcomes == [Put.CREATED, Put.CREATED]:
            raise StoreError(
                f"the endpoint {host!r} ignores 'If-None-Match: *', so two writers could overwrite each other's "
                "commits: it cannot be written; a newer version of the store may support conditional writes",
                url=self.url,
            )
        return Put.UNKNOWN not in outcomes

    def _listed(self, prefix: str, start_after: str) -> Iterator[FileStat]:
        position: dict[str, str] = {"StartAfter": start_after} if start_after else {}
        last = b""
        while True:
            page = self._client.call("list_objects_v2", Prefix=prefix, **position)
            for entry in page.get("Contents", ()):
                key = str(entry["Key"])
                if key.encode() < last:
                    raise StoreError(
                        f"bucket {self._client.bucket!r} does not list in order of keys (a directory bucket?), "
                        "which tables need",
                        url=self.url,
                    )
                last = key.encode()
                path = key[len(self._root) :]
                if _is_clean(path) and path not in _PROBES:
                    yield FileStat(path, int(entry["Size"]), _epoch_ms(entry), _etag(entry))
            if not page.get("IsTruncated"):
                return
            position = {"ContinuationToken": page["NextContinuationToken"]}


def _parse_url(url: str) -> tuple[str, str]:
    """Bucket and prefix, the latter clean or empty."""
    bucket, _, prefix = url.partition("://")[2].partition("/")
    if not _BUCKET.fullmatch(bucket):
        # The error does not show the URL, because people put credentials in front of the bucket.
        raise InputError(
            "an S3 URL is s3://bucket/prefix with a plain bucket name; credentials go into "
            f"{argument('storage_options')}"
        )
    prefix = prefix.rstrip("/")
    return bucket, check_path(prefix) if prefix else ""


def _is_clean(path: str) -> bool:
    try:
        check_path(path)
    except InputError:
        return False
    return True


def _epoch_ms(answer: Mapping[str, Any]) -> int:
    return int(answer["LastModified"].timestamp() * 1000)


def _etag(answer: Mapping[str, Any]) -> str:
    return str(answer.get("ETag", "")).strip('"')


class _Upload(io.RawIOBase):
    """Writes up to one part in one request at the end, and more in parts. It holds one part at a time. Closing it
    uploads nothing."""

    def __init__(self, client: S3Client, key: str) -> None:
        super().__init__()
        self._client, self._key = client, key
        self._buffer = bytearray()
        self._upload_id: str | None = None
        self._parts: list[dict[str, object]] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = rest = memoryview(data).cast("B")
        while rest:
            if len(self._buffer) == _PART_SIZE_BYTES:
                self._send()
            room = _PART_SIZE_BYTES - len(self._buffer)
            self._buffer += rest[:room]
            rest = rest[room:]
        return view.nbytes

    def finish(self) -> None:
        if self._upload_id is None:
            self._client.write(self._key, bytes(self._buffer))
            return
        self._send()
        self._call("complete_multipart_upload", MultipartUpload={"Parts": self._parts})

    def abort(self) -> None:
        if self._upload_id is None:
            return
        try:
            self._call("abort_multipart_upload")
        except StoreError as error:
            # The error that made us abort matters more. Vacuum ends uploads that nobody completed.
            _LOG.warning("an upload may stay behind unfinished: %s", error)

    def _send(self) -> None:
        if self._upload_id is None:
            self._upload_id = str(self._client.call("create_multipart_upload", self._key)["UploadId"])
        part = bytes(self._buffer)
        self._buffer.clear()
        number = len(self._parts) + 1
        answer = self._call("upload_part", PartNumber=number, Body=part)
        self._parts.append({"PartNumber": number, "ETag": answer["ETag"]})

    def _call(self, operation: str, **arguments: object) -> dict[str, Any]:
        try:
            return self._client.call(operation, self._key, UploadId=self._upload_id, **arguments)
        except FileNotFoundError as error:
            url = f"s3://{self._client.bucket}/{self._key}"
            raise StoreError(
                f"{operation} {url}: the upload is gone; a clean-up or a rule of the bucket ended it. Write again",
                url=url,
            ) from error


@contextmanager
def _output(client: S3Client, key: str) -> Iterator[pa.NativeFile]:
    upload = _Upload(client, key)
    file = pa.PythonFile(upload, mode="w")
    try:
        yield file
        upload.finish()
    except BaseException:
        upload.abort()
        raise
    finally:
        file.close()


_FILE_SYSTEM = "org.apache.hadoop.fs.s3a.S3AFileSystem"
_PROVIDERS = "org.apache.hadoop.fs.s3a"
_SALT = os.urandom(16)
"""Schemes show in plans. Without a salt, a guessed password could be checked against them."""

_SAME = {
    "username": "key",
    "password": "secret",
    "aws_access_key_id": "key",
    "aws_secret_access_key": "secret",
    "aws_session_token": "token",
}
_CREDENTIALS = {"key": "access.key", "secret": "secret.key", "token": "session.token"}
_PLAIN = {
    "endpoint_url": "endpoint",
    "region_name": "endpoint.region",
    "requester_pays": "requester.pays.enabled",
    "use_ssl": "connection.ssl.enabled",
}
_OF_THE_CLIENT_ALONE = frozenset(
    {
        "cache_regions",
        "connect_timeout",
        "local_expiry_check",
        "max_pool_connections",
        "read_timeout",
        "retries",
        "tcp_keepalive",
    }
)
"""Options of the Python client alone. It reads the same objects with and without them."""


@dataclass(frozen=True, slots=True)
class S3A:
    """How Spark reaches a bucket."""

    bucket: str
    scheme: str
    """The scheme of URLs. It is ``s3a``, with the session's settings, if the store was opened without options."""
    options: Mapping[str, str] = field(repr=False)
    """The options of each read, secrets included; all begin with ``fs.``."""
    unknown: tuple[str, ...]
    """Storage options without a counterpart in S3A. If there are any, S3A may see other objects, or none."""

    @property
    def trying(self) -> S3A:
        """The same with a client that gives up within a minute. Other clients take five to find that nobody answers."""
        scheme = f"{self.scheme}-try"
        settings = {"attempts.maximum": "2", "retry.limit": "1", "connection.establish.timeout": "15s"}
        return S3A(self.bucket, scheme, {**self.options, **_options(self.bucket, scheme, settings)}, self.unknown)


def s3a_of(bucket: str, s3fs_options: Mapping[str, Any]) -> S3A:
    """S3A for options from :func:`lakemerge.storage.s3_options.s3fs_options`. Missing credentials, and everything else
    that the options do not say, follow the session's settings."""
    given = _flat(s3fs_options)
    settings = {_PLAIN[name]: _text(given.pop(name)) for name in _PLAIN if name in given}
    style = given.pop("addressing_style", "auto")
    if "endpoint" in settings:
        settings = {"endpoint.region": "us-east-1", **settings, "path.style.access": _text(style != "virtual")}
    elif style != "auto":
        settings["path.style.access"] = _text(style == "path")
    if given.pop("anon", False):
        settings["aws.credentials.provider"] = f"{_PROVIDERS}.AnonymousAWSCredentialsProvider"
    elif {"key", "secret"} <= given.keys():
        provider = "TemporaryAWSCredentialsProvider" if "token" in given else "SimpleAWSCredentialsProvider"
        settings["aws.credentials.provider"] = f"{_PROVIDERS}.{provider}"
        settings |= {_CREDENTIALS[name]: _text(given.pop(name)) for name in _CREDENTIALS if name in given}
    unknown = tuple(sorted(given.keys() - _OF_THE_CLIENT_ALONE))
    if not settings:
        return S3A(bucket, "s3a", {}, unknown)
    digest = hashlib.blake2b(repr(sorted(settings.items())).encode(), key=_SALT, digest_size=8).hexdigest()
    return S3A(bucket, f"s3a-{digest}", _options(bucket, f"s3a-{digest}", settings), unknown)


def _options(bucket: str, scheme: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Settings for the bucket by name, which go before settings for all buckets. Ours go before the session's."""
    of_bucket = {f"fs.s3a.bucket.{bucket}.{name}": value for name, value in settings.items()}
    return {f"fs.{scheme}.impl": _FILE_SYSTEM, **of_bucket}


def _flat(options: Mapping[str, Any]) -> dict[str, Any]:
    """The given options on one level, each under one name."""
    config = options.get("config_kwargs", {})
    flat = {**options, **options.get("client_kwargs", {}), **config, **config.get("s3", {})}
    given = {_SAME.get(name, name): value for name, value in flat.items() if value not in (None, {})}
    return {name: value for name, value in given.items() if name not in ("client_kwargs", "config_kwargs", "s3")}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
