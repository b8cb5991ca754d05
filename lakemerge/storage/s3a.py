"""A store on S3 as Hadoop's S3A is told of it, through which Spark's own readers reach the same objects.

Hadoop keeps one client a scheme and bucket, whatever a later caller's options say. A store that is opened with
options therefore has a scheme of its own: no other table gets its client, and it gets no other's.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["S3A", "s3a_of"]

_FILE_SYSTEM = "org.apache.hadoop.fs.s3a.S3AFileSystem"
_PROVIDERS = "org.apache.hadoop.fs.s3a"
_SALT = os.urandom(16)
"""Schemes show in plans: without it a guessed password could be tried against them."""

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
"""How the Python client goes about it; what it reads is the same with and without them."""


@dataclass(frozen=True, slots=True)
class S3A:
    """How Spark reaches a bucket."""

    bucket: str
    scheme: str
    """The scheme of URLs; ``s3a``, with the session's settings, where the store was opened without options."""
    options: Mapping[str, str] = field(repr=False)
    """The options of each read, secrets included; all begin with ``fs.``."""
    unknown: tuple[str, ...]
    """Storage options that S3A has no counterpart of. Where there are any, it may see other objects, or none."""

    @property
    def trying(self) -> S3A:
        """The same, by a client that gives up within a minute, where others take five to say that nobody answers."""
        scheme = f"{self.scheme}-try"
        settings = {"attempts.maximum": "2", "retry.limit": "1", "connection.establish.timeout": "15s"}
        return S3A(self.bucket, scheme, {**self.options, **_options(self.bucket, scheme, settings)}, self.unknown)


def s3a_of(bucket: str, s3fs_options: Mapping[str, Any]) -> S3A:
    """From options as :func:`lakemerge.storage.s3_options.s3fs_options` returns them. Credentials that they leave
    open are looked up as the session is set up to, and so is all else that they do not say."""
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
    """What a session says of the bucket by name goes before what it says of all, and ours before both."""
    of_bucket = {f"fs.s3a.bucket.{bucket}.{name}": value for name, value in settings.items()}
    return {f"fs.{scheme}.impl": _FILE_SYSTEM, **of_bucket}


def _flat(options: Mapping[str, Any]) -> dict[str, Any]:
    """What is given, on one level, each under one name."""
    config = options.get("config_kwargs", {})
    flat = {**options, **options.get("client_kwargs", {}), **config, **config.get("s3", {})}
    given = {_SAME.get(name, name): value for name, value in flat.items() if value not in (None, {})}
    return {name: value for name, value in given.items() if name not in ("client_kwargs", "config_kwargs", "s3")}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
