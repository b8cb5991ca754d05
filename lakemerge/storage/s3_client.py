"""The objects of one bucket, over s3fs: connections, and s3fs's errors as errors of this library.

No secret appears in an error, a log record or a ``repr``. The logs of botocore's requests and of py4j's requests to
Spark have none either.
"""

from __future__ import annotations

import errno
import functools
import importlib
import importlib.util
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn
from urllib.parse import urlsplit

from lakemerge.errors import DependencyMissingError, InputError, StoreError
from lakemerge.storage.base import FileStat, NothingCreatedError, Put
from lakemerge.storage.object_client import ObjectClient, Parts
from lakemerge.storage.options import secret_options, without_values
from mergers.interrupts import is_interrupt
from mergers.logs import logger
from mergers.wording import argument

__all__ = ["CONDITION_FAILED", "S3Client"]

CONDITION_FAILED = frozenset({"PreconditionFailed", "412"})
"""The codes of a store's answer if an object does not have the requested version."""

_LOG = logger(__name__)

_DELETE_BATCH = 1_000
_CONDITION_FAILED = 412
_CONFLICT = 409
_NOT_IMPLEMENTED = 501
_UNCLEAR = frozenset({408, 409, 429})
"""HTTP status codes of answers that say nothing about the request, in addition to all from 500 on."""
_WRONG_KEY = "Check that key and secret are those of this account and endpoint"
_REMEDIES = {
    "AccessDenied": "Let this account list, read, write and delete there (docs/guides/stores.md lists the rights)",
    "InvalidAccessKeyId": _WRONG_KEY,
    "SignatureDoesNotMatch": _WRONG_KEY,
    "ExpiredToken": "The session has ended: get new credentials",
    "NoSuchBucket": "Check the bucket's name, or create the bucket first",
    "PermanentRedirect": "The bucket is in another region: name that one",
    "RequestTimeTooSkewed": "Set the clock of this machine",
}
_NO_CREDENTIALS = frozenset({"NoCredentialsError", "PartialCredentialsError"})

_LOGGERS_OF_REQUESTS = (
    "aiobotocore.endpoint",
    "botocore.auth",
    "botocore.endpoint",
    "botocore.parsers",
    "py4j.clientserver",
    "py4j.java_gateway",
)
_SECRET = re.compile(
    r"""(x-amz-security-token|server-side-encryption-customer-key|secretaccesskey|sessiontoken)"""
    r"""(['"]?\s*[:>]\s*b?['"]?)[^\s'"<]+""",
    re.IGNORECASE,
)
_HADOOP_SETTING = re.compile(r"(\nsfs\.s3a\.[^\n]*\ns)[^\n]*")
"""A setting as py4j sends it: each argument is on its own line, and a string begins with ``s``."""


class S3Client(ObjectClient):
    condition = "If-None-Match: *"
    own_hosts = (".amazonaws.com", ".amazonaws.com.cn")

    def __init__(self, bucket: str, options: Mapping[str, Any]) -> None:
        if importlib.util.find_spec("s3fs") is None:
            raise DependencyMissingError("tables on S3 need s3fs: pip install lakemerge[s3]", package="s3fs")
        super().__init__(bucket)
        self._options = dict(options)
        self._profile = self._options.pop("profile", None)
        self._sessions: dict[int, Any] = {}
        self._connections: dict[tuple[int, bool], Any] = {}
        for name in _LOGGERS_OF_REQUESTS:
            logging.getLogger(name).addFilter(_without_secrets)  # once: it is always the same one

    def call(self, operation: str, key: str = "", **arguments: object) -> dict[str, Any]:
        """Call an operation of the S3 API on the bucket, or on the object ``key``. Passing failures are retried.

        Raises :class:`FileNotFoundError` for a missing object, :class:`StoreError` for anything else.
        """
        if key:
            arguments["Key"] = key
        try:
            answer = self._connect().call_s3(operation, Bucket=self.bucket, **arguments)
        except _failures() as error:
            self._raise(error, operation, key)
        return dict(answer or {})

    def url(self, key: str) -> str:
        return f"s3://{self.bucket}/{key}"

    def look(self, key: str) -> FileStat:
        head = self.call("head_object", key)
        return FileStat(key, int(head["ContentLength"]), _epoch_ms(head), _etag(head))

    def read(self, key: str, start: int | None = None, end: int | None = None, *, etag: str | None = None) -> bytes:
        """In one request. If the object has another version than that of ``etag``, the error's ``store_code`` is one of
        :data:`CONDITION_FAILED`."""
        try:
            if etag is not None:
                return self._read_version(key, f"bytes={start}-{(end or 0) - 1}", etag)
            # Without concurrency s3fs requests the object directly. Otherwise it first asks for its size.
            data = self._connect().cat_file(f"{self.bucket}/{key}", start=start, end=end, max_concurrency=1)
        except _failures() as error:
            self._raise(error, "get_object", key)
        return bytes(data)

    def _pages(self, position: dict[str, str], **what: str) -> Iterator[dict[str, Any]]:
        while True:
            page = self.call("list_objects_v2", **what, **position)
            yield page
            if not page.get("IsTruncated"):
                return
            position = {"ContinuationToken": page["NextContinuationToken"]}

    def _read_version(self, key: str, part: str, etag: str) -> bytes:
        """What ``cat_file`` does, with a condition, which ``cat_file`` does not take."""
        connection = self._connect()

        async def fetched() -> bytes:
            answer = await connection._call_s3("get_object", Bucket=self.bucket, Key=key, Range=part, IfMatch=etag)
            try:
                return bytes(await answer["Body"].read())
            finally:
                answer["Body"].close()

        asyn = importlib.import_module("fsspec.asyn")
        return bytes(asyn.sync(connection.loop, fetched))

    def write(self, key: str, data: bytes) -> None:
        try:
            self._connect().pipe_file(f"{self.bucket}/{key}", data)
        except _failures() as error:
            self._raise(error, "put_object", key)

    def put_if_absent(self, key: str, data: bytes) -> Put:
        """Make one conditional request, which nothing below sends a second time.

        Raises :class:`NothingCreatedError` if no request was sent, and :class:`StoreError` for an answer that is a
        refusal. Such an answer does not prove that the request was not carried out: a proxy may have sent it twice, and
        some stores answer 499 after the work is done.
        """
        try:
            self._connect(single_request=True).call_s3(
                "put_object", Bucket=self.bucket, Key=key, Body=data, IfNoneMatch="*"
            )
        except _failures() as error:
            status, code = _response(error)
            if status == _CONDITION_FAILED:
                return Put.EXISTS
            if status is None and _was_never_sent(error):
                try:
                    self._raise(error, "put_object", key)
                except StoreError as refusal:
                    raise NothingCreatedError(refusal.message, **refusal.facts) from error
            if status == _NOT_IMPLEMENTED:
                raise StoreError(
                    f"the endpoint of bucket {self.bucket!r} has no conditional writes, which commits need: "
                    "it cannot be written",
                    bucket=self.bucket,
                ) from error
            if status is None or status >= 500 or status in _UNCLEAR or code == "RequestTimeout":
                _check_not_foreign(error)
                _LOG.warning("no clear answer to creating s3://%s/%s: %s", self.bucket, key, _reason(error))
                return Put.UNKNOWN
            self._raise(error, "put_object", key)
        return Put.CREATED

    def replace(self, key: str, data: bytes, *, etag: str) -> bool:
        try:
            self._connect(single_request=True).call_s3(
                "put_object", Bucket=self.bucket, Key=key, Body=data, IfMatch=f'"{etag}"'
            )
        except _failures() as error:
            if isinstance(error, FileNotFoundError) or _response(error)[0] == _CONDITION_FAILED:
                return False
            self._raise(error, "put_object", key)
        return True

    def delete(self, files: Sequence[tuple[str, str]]) -> Sequence[str]:
        changed: list[str] = []
        objects = [{"Key": key, "ETag": f'"{etag}"'} if etag else {"Key": key} for key, etag in files]
        for start in range(0, len(objects), _DELETE_BATCH):
            batch = objects[start : start + _DELETE_BATCH]
            answer = self.call("delete_objects", Delete={"Objects": batch, "Quiet": True})
            failed = [error for error in answer.get("Errors", ()) if error.get("Code") != "NoSuchKey"]
            changed += [str(error.get("Key")) for error in failed if error.get("Code") in CONDITION_FAILED]
            failed = [error for error in failed if error.get("Code") not in CONDITION_FAILED]
            if failed:
                first = failed[0]
                raise StoreError(
                    f"{len(failed)} objects of {self.url('')} were not deleted; the first: {first.get('Key')!r}, "
                    f"{first.get('Code')}: {first.get('Message')}",
                    url=self.url(str(first.get("Key"))),
                    store_code=first.get("Code"),
                )
        return changed

    def listed(self, prefix: str, start_after: str) -> Iterator[FileStat]:
        for page in self._pages({"StartAfter": start_after} if start_after else {}, Prefix=prefix):
            for entry in page.get("Contents", ()):
                yield FileStat(str(entry["Key"]), int(entry["Size"]), _epoch_ms(entry), _etag(entry))

    def prefixes(self, prefix: str) -> Iterator[str]:
        for page in self._pages({}, Prefix=prefix, Delimiter="/"):
            for entry in page.get("CommonPrefixes", ()):
                yield str(entry["Prefix"])

    def begin(self, key: str) -> Parts:
        return _S3Parts(self, key, str(self.call("create_multipart_upload", key)["UploadId"]))

    def clean_up(self, prefix: str, *, before_ms: int, dry_run: bool) -> Sequence[FileStat]:
        found: list[FileStat] = []
        position: dict[str, str] = {}
        while True:
            page = self.call("list_multipart_uploads", Prefix=prefix, **position)
            for upload in page.get("Uploads", ()):
                begun_ms, key = int(upload["Initiated"].timestamp() * 1000), str(upload["Key"])
                if begun_ms < before_ms:
                    found.append(FileStat(key, 0, begun_ms))
                    if not dry_run:
                        self.call("abort_multipart_upload", key, UploadId=upload["UploadId"])
            if not page.get("IsTruncated"):
                return found
            position = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def host_of_writes(self) -> str:
        """Raises :class:`DependencyMissingError` if botocore does not know the condition, because s3fs would then leave
        it out and overwrite."""
        try:
            client = self._connect(single_request=True).s3
        except _failures() as error:
            self._raise(error, "connect", "")
        if "IfNoneMatch" not in client.meta.service_model.operation_model("PutObject").input_shape.members:
            raise DependencyMissingError(
                "this botocore is too old for conditional writes to S3: pip install --upgrade lakemerge[s3] botocore",
                package="botocore",
            )
        return urlsplit(str(client.meta.endpoint_url)).hostname or ""

    def _connect(self, *, single_request: bool = False) -> Any:
        """An ``S3FileSystem`` of this process. One that was inherited by a fork stays referenced: to finalize it would
        wait for a thread that the child does not have."""
        slot = (os.getpid(), single_request)
        connection = self._connections.get(slot)
        if connection is None:
            options = dict(self._options)
            if single_request:
                options["config_kwargs"] = {
                    **options.get("config_kwargs", {}),
                    "retries": {"total_max_attempts": 1},
                    "http_session_cls": _session_that_sends_once(),
                }
            file_system = importlib.import_module("s3fs").S3FileSystem
            try:
                connection = file_system(
                    **options, session=self._session(), use_listings_cache=False, skip_instance_cache=True
                )
                _ = connection.s3  # it makes the client, which judges client_kwargs and config_kwargs
            except (TypeError, ValueError) as error:
                # The other package's error may hold values of options, so it is not kept as a cause.
                raise InputError(
                    f"s3fs cannot use these {argument('storage_options')}: {without_values(str(error), self._options)}"
                ) from None
            if single_request:
                connection.retries = 1
            connection = self._connections.setdefault(slot, connection)
        return connection

    def _session(self) -> Any:
        """One session for both connections: it holds botocore's model of S3, which takes a while to load."""
        session = self._sessions.get(os.getpid())
        if session is None:
            new = importlib.import_module("aiobotocore.session").AioSession(profile=self._profile)
            session = self._sessions.setdefault(os.getpid(), new)
        return session

    def _raise(self, error: BaseException, operation: str, key: str) -> NoReturn:
        _check_not_foreign(error)
        url = self.url(key)
        _, code = _response(error)
        if isinstance(error, FileNotFoundError) and code != "NoSuchBucket":
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url) from error
        told = "" if code is None else f" ({code})"
        reason = _reason(error)
        shown = without_values(reason, secret_options(self._options))
        raise StoreError(f"{operation} {url}: {shown}{told}{_remedy(error, code)}", url=url, store_code=code) from (
            error if shown == reason else None
        )


class _S3Parts:
    def __init__(self, client: S3Client, key: str, upload_id: str) -> None:
        self._client, self._key, self._upload_id = client, key, upload_id
        self._parts: list[dict[str, object]] = []

    def send(self, part: bytes) -> None:
        number = len(self._parts) + 1
        answer = self._call("upload_part", PartNumber=number, Body=part)
        self._parts.append({"PartNumber": number, "ETag": answer["ETag"]})

    def finish(self, last: bytes) -> None:
        self.send(last)
        self._call("complete_multipart_upload", MultipartUpload={"Parts": self._parts})

    def abort(self) -> None:
        self._call("abort_multipart_upload")

    def _call(self, operation: str, **arguments: object) -> dict[str, Any]:
        try:
            return self._client.call(operation, self._key, UploadId=self._upload_id, **arguments)
        except FileNotFoundError as error:
            url = self._client.url(self._key)
            raise StoreError(
                f"{operation} {url}: the upload is gone; a clean-up or a rule of the bucket ended it. Write again",
                url=url,
            ) from error


def _epoch_ms(answer: Mapping[str, Any]) -> int:
    return int(answer["LastModified"].timestamp() * 1000)


def _etag(answer: Mapping[str, Any]) -> str:
    return str(answer.get("ETag", "")).strip('"')


def _remedy(error: BaseException, code: str | None) -> str:
    """What to do about what S3 said, where it is the caller's to do."""
    if type(error).__name__ in _NO_CREDENTIALS:
        return f". Give credentials in {argument('storage_options')}, or as AWS's own tools take them"
    remedy = None if code is None else _REMEDIES.get(code)
    return "" if remedy is None else f". {remedy}"


def _without_secrets(record: logging.LogRecord) -> bool:
    """Removes secrets from a log record. At level DEBUG botocore logs answers and requests with their headers, and py4j
    logs what is sent to Spark."""
    message = _SECRET.sub(r"\1\2***", record.getMessage())
    record.msg, record.args = _HADOOP_SETTING.sub(r"\1***", message), None
    return True


@functools.cache
def _failures() -> tuple[type[Exception], ...]:
    exceptions = importlib.import_module("botocore.exceptions")
    parsers = importlib.import_module("botocore.parsers")
    aiohttp = importlib.import_module("aiohttp")
    # s3fs translates some of them to OSError and lets others through.
    return (
        OSError,
        exceptions.BotoCoreError,
        exceptions.ClientError,
        parsers.ResponseParserError,
        aiohttp.ClientError,
    )


def _response(error: BaseException) -> tuple[int | None, str | None]:
    """HTTP status and S3 error code of the answer behind ``error``; ``None`` if there was no answer."""
    seen: BaseException | None = error
    while seen is not None:
        response = getattr(seen, "response", None)
        if isinstance(response, Mapping):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return status, response.get("Error", {}).get("Code")
        seen = seen.__cause__
    return None, None


def _was_never_sent(error: BaseException) -> bool:
    """Whether an error without an answer was raised before a request was made."""
    exceptions = importlib.import_module("botocore.exceptions")
    return isinstance(
        error,
        exceptions.NoCredentialsError
        | exceptions.PartialCredentialsError
        | exceptions.CredentialRetrievalError
        | exceptions.TokenRetrievalError
        | exceptions.ParamValidationError,
    )


def _check_not_foreign(error: BaseException) -> None:
    """Raise the exception of a signal handler as it is. s3fs raises time-outs of requests as a class of its own."""
    if is_interrupt(error):
        raise error
    of_request = importlib.import_module("fsspec.asyn").FSTimeoutError
    if isinstance(error, TimeoutError) and error.errno is None and not isinstance(error, of_request):
        raise error


@functools.cache
def _session_that_sends_once() -> type:
    """An HTTP session that never repeats a request by itself. aiohttp repeats a PUT whose connection ends without an
    answer, and has no setting for it."""
    httpsession = importlib.import_module("aiobotocore.httpsession")

    class SendsOnce(httpsession.AIOHTTPSession):  # type: ignore[misc, name-defined]
        async def _get_session(self, proxy_url: str | None) -> Any:
            session = await super()._get_session(proxy_url)
            session._retry_connection = False
            return session

    return SendsOnce


def _reason(error: BaseException) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
