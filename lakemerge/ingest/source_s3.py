"""Files that land in a bucket of S3, or of a store that speaks its protocol.

Every read and every copy names the ETag that was listed (``If-Match``), so no window holds parts of two versions. A
delete compares the ETag first, because not every store has conditional deletes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa

from lakemerge.errors import StoreError
from lakemerge.ingest.source import FileUnreadableError, Outcome, Source, SourceFile, changed, gone, is_hidden
from lakemerge.storage.object_input import ObjectInput
from lakemerge.storage.s3_client import CONDITION_FAILED, S3Client
from lakemerge.storage.s3_options import s3fs_options

__all__ = ["S3Source"]

_UNREADABLE: Final = frozenset({"AccessDenied", "403", "InvalidObjectState"})
"""Errors of one object: no permission, or a storage class that has to be restored before a read."""
_COPY_LIMIT_BYTES: Final = 5 << 30
_PART_BYTES: Final = 1 << 30


class S3Source(Source):
    """One bucket. Options are those of :class:`lakemerge.storage.S3Store`; pickles carry them, secrets included."""

    def __init__(self, bucket: str, storage_options: Mapping[str, object]) -> None:
        self._options = s3fs_options(storage_options, os.environ)
        self._root = f"s3://{bucket}/"
        self._client = S3Client(bucket, self._options)

    def __repr__(self) -> str:
        return f"S3Source({self._root!r})"

    def __reduce__(self) -> tuple[type[S3Source], tuple[str, dict[str, Any]]]:
        return type(self), (self._client.bucket, self._options)

    def list(self, folder: str, *, recursive: bool) -> Iterator[SourceFile]:
        prefix = self._key(folder).rstrip("/") + "/" if self._key(folder) else ""
        for entry in self._listed(prefix, {} if recursive else {"Delimiter": "/"}):
            parts = str(entry["Key"])[len(prefix) :].split("/")
            if parts[-1] and not any(map(is_hidden, parts)):
                yield self._file(str(entry["Key"]), entry, int(entry["Size"]))

    def stat(self, path: str) -> SourceFile | None:
        key = self._key(path)
        if not key or key.endswith("/"):
            return None
        try:
            head = self._client.call("head_object", key)
        except FileNotFoundError:
            return None
        return self._file(key, head, int(head["ContentLength"]))

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[pa.NativeFile]:
        opened = ObjectInput(self._client, self._key(file.path), file.size, etag=file.token)
        with _readable(file.path), pa.PythonFile(opened, mode="r") as data:
            yield data

    def delete(self, file: SourceFile) -> Outcome:
        there = self.stat(file.path)
        if there is None:
            return Outcome.GONE
        if there.token != file.token:
            return Outcome.CHANGED
        return _outcome(lambda: self._client.call("delete_object", self._key(file.path), IfMatch=file.token))

    def move(self, file: SourceFile, target: str) -> Outcome:
        copied = _outcome(lambda: self._copy(file, target))
        return self.delete(file) if copied is Outcome.DONE else copied

    def archived(self, folder: str) -> Iterator[tuple[SourceFile, int]]:
        for entry in self._listed(self._key(folder).rstrip("/") + "/", {}):
            file = self._file(str(entry["Key"]), entry, int(entry["Size"]))
            yield file, file.modified_ns // 1_000_000

    def _copy(self, file: SourceFile, target: str) -> None:
        bucket, _, key = target.removeprefix("s3://").partition("/")
        client = self._client if bucket == self._client.bucket else S3Client(bucket, self._options)
        source = {"Bucket": self._client.bucket, "Key": self._key(file.path)}
        if file.size <= _COPY_LIMIT_BYTES:
            client.call("copy_object", key, CopySource=source, CopySourceIfMatch=file.token)
            return
        upload = str(client.call("create_multipart_upload", key)["UploadId"])
        try:
            parts: list[dict[str, object]] = []
            for number, start in enumerate(range(0, file.size, _PART_BYTES), start=1):
                part = f"bytes={start}-{min(start + _PART_BYTES, file.size) - 1}"
                answer = client.call(
                    "upload_part_copy",
                    key,
                    UploadId=upload,
                    PartNumber=number,
                    CopySourceRange=part,
                    CopySource=source,
                    CopySourceIfMatch=file.token,
                )
                parts.append({"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]})
            client.call("complete_multipart_upload", key, UploadId=upload, MultipartUpload={"Parts": parts})
        except BaseException:
            client.call("abort_multipart_upload", key, UploadId=upload)
            raise

    def _listed(self, prefix: str, more: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        position: dict[str, str] = {}
        while True:
            page = self._client.call("list_objects_v2", **{"Prefix": prefix, **more, **position})
            yield from page.get("Contents", ())
            if not page.get("IsTruncated"):
                return
            position = {"ContinuationToken": page["NextContinuationToken"]}

    def _key(self, path: str) -> str:
        return path.removeprefix(self._root)

    def _file(self, key: str, entry: Mapping[str, Any], size: int) -> SourceFile:
        modified_ns = int(entry["LastModified"].timestamp() * 1000) * 1_000_000
        return SourceFile(self._root + key, size, str(entry["ETag"]), modified_ns)


def _outcome(call: Callable[[], object]) -> Outcome:
    """What became of a file by a call that is made only if the file has its token."""
    try:
        call()
    except FileNotFoundError:
        return Outcome.GONE
    except StoreError as error:
        if error.facts.get("store_code") in CONDITION_FAILED:
            return Outcome.CHANGED
        raise
    return Outcome.DONE


@contextmanager
def _readable(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise gone(path) from error
    except StoreError as error:
        if error.facts.get("store_code") in CONDITION_FAILED:
            raise changed(path) from error
        if error.facts.get("store_code") not in _UNREADABLE:
            raise
        raise FileUnreadableError(f"{path} cannot be read: {error.facts['store_code']}", path=path) from error
