"""Tables on S3 and on object stores that speak its protocol.

Put-if-absent is one ``PutObject`` with ``If-None-Match: *`` (Amazon S3 user guide, "Conditional writes"). The retries
of botocore, s3fs and aiohttp are switched off for it, so a request is sent once. Objects are deleted and replaced
exactly with ``If-Match`` (user guide, "Conditional deletes"). What endpoints other than Amazon's are asked first stands
in :mod:`lakemerge.storage.object_store`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lakemerge.errors import InputError
from lakemerge.storage.object_store import BUCKET, ObjectStore, clean_prefix
from lakemerge.storage.s3_client import S3Client
from lakemerge.storage.s3_options import s3fs_options
from mergers.wording import argument

__all__ = ["S3A", "S3Store", "s3a_of"]


class S3Store(ObjectStore[S3Client]):
    """A prefix of a bucket: ``s3://bucket/prefix`` (or ``s3a://``).

    ``storage_options``: s3fs's ``key``, ``secret``, ``token``, ``anon``, ``endpoint_url``, ``profile``,
    ``client_kwargs``, ``config_kwargs``, ``s3_additional_kwargs``, ..., ``addressing_style`` (``path``, ``virtual``
    or ``auto``, which is by path at an ``endpoint_url``), or ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``,
    ``AWS_SESSION_TOKEN``, ``AWS_REGION``, ``AWS_ENDPOINT_URL``, ``AWS_PROFILE``. Missing options are taken from these
    variables of the process that makes the store (:func:`s3fs_options`), and then from botocore's own chain of profile,
    web identity and instance in the process that uses it.
    """

    wrong_token = "0" * 32

    def __init__(
        self,
        url: str,
        storage_options: Mapping[str, object] | None = None,
    ) -> None:
        bucket, prefix = _parse_url(url)
        self._options = s3fs_options(storage_options or {}, os.environ)
        super().__init__(S3Client(bucket, self._options), prefix)
        self.s3a: Final[S3A] = s3a_of(bucket, self._options)
        """For Spark's own readers."""

    def __reduce__(self) -> tuple[type[S3Store], tuple[str, dict[str, Any]]]:
        return type(self), (self.url, self._options)

    def spark_url(self, path: str) -> str:
        """The URL has to be read with the options in :attr:`s3a`."""
        return f"{self.s3a.scheme}://{self._client.bucket}/{self._key(path)}"

    def _key(self, path: str) -> str:
        if "?versionId=" in path:
            raise InputError(f"{path!r}: s3fs takes '?versionId=' for a version, not for a part of a name", path=path)
        return super()._key(path)


def _parse_url(url: str) -> tuple[str, str]:
    """Bucket and prefix, the latter clean or empty."""
    bucket, _, prefix = url.partition("://")[2].partition("/")
    if not BUCKET.fullmatch(bucket):
        # The error does not show the URL, because people put credentials in front of the bucket.
        raise InputError(
            "an S3 URL is s3://bucket/prefix with a plain bucket name; credentials go into "
            f"{argument('storage_options')}"
        )
    return bucket, clean_prefix(prefix)


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
