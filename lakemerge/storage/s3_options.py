"""Storage options for S3, completed from the AWS variables of this process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lakemerge.errors import InputError
from lakemerge.storage.options import check_no_password, checked_options, shown_name

__all__ = ["s3fs_options"]

_AWS_NAMES = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_SESSION_TOKEN": "token",
    "AWS_ENDPOINT_URL": "endpoint_url",
    "AWS_ENDPOINT_URL_S3": "endpoint_url",
    "AWS_PROFILE": "profile",
    "AWS_REGION": "region_name",
    "AWS_DEFAULT_REGION": "region_name",
}
_FLAGS = frozenset({"anon", "use_ssl", "requester_pays", "cache_regions", "local_expiry_check"})
_MAPPINGS = frozenset({"client_kwargs", "config_kwargs", "s3_additional_kwargs"})
_TEXTS = frozenset(
    {"key", "secret", "token", "username", "password", "endpoint_url", "profile", "region_name", "addressing_style"}
)
_KNOWN = frozenset({*_FLAGS, *_MAPPINGS, *_TEXTS, *_AWS_NAMES})
_CREDENTIALS = frozenset({"key", "secret", "token", "username", "password", "profile"})
_ADDRESSING_STYLES = ("auto", "path", "virtual")


def s3fs_options(storage_options: Mapping[str, object], environment: Mapping[str, str]) -> dict[str, Any]:
    """Options as s3fs takes them, from its own names and the usual ``AWS_*`` names.

    All values may be strings, as in Spark: flags are ``true`` or ``false``, mappings are JSON. If key pair, endpoint or
    region is missing, it is taken from the AWS variables in ``environment``. So it is sent to executors, which have
    other variables or none.

    Raises an :class:`InputError` that names every option that is unknown, given twice or of the wrong kind. It does not
    show values, which may be secrets.
    """
    options: dict[str, Any] = {}
    problems = []
    for given, value in checked_options(storage_options).items():
        name = _AWS_NAMES.get(given.upper(), given)
        if name not in _FLAGS | _MAPPINGS | _TEXTS:
            problems.append(f"{shown_name(given, _KNOWN)} is unknown")
        elif name in options:
            problems.append(f"{given!r} is given twice, under two names")
        else:
            options[name] = _parsed(name, value)
            if options[name] is None:
                problems.append(f"{given!r} is not {_kind(name)}")
            elif name == "endpoint_url":
                check_no_password(str(value))
    if problems:
        raise InputError(
            f"storage options for S3: {'; '.join(problems)}. Known are: {', '.join(sorted(_KNOWN))}",
            problems=tuple(problems),
        )
    return _nested(_completed(options, environment))


def _parsed(name: str, value: object) -> object:
    """The value as s3fs takes it; ``None`` if it is of the wrong kind."""
    if name in _FLAGS:
        return value if isinstance(value, bool) else {"true": True, "false": False}.get(str(value).lower())
    if name in _MAPPINGS:
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                return None
        return dict(value) if isinstance(value, Mapping) else None
    if name == "addressing_style" and value not in _ADDRESSING_STYLES:
        return None
    return value if isinstance(value, str) else None


def _kind(name: str) -> str:
    if name == "addressing_style":
        return f"one of {', '.join(_ADDRESSING_STYLES)}"
    return "true or false" if name in _FLAGS else "a mapping" if name in _MAPPINGS else "a string"


def _completed(options: dict[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """The options, completed. Credentials are taken together or not at all, because a token belongs to its key. Those
    of a profile, an instance or a web identity expire, so each process looks for its own."""
    found = {name: environment[name] for name in _AWS_NAMES if environment.get(name)}
    client = options.get("client_kwargs", {})
    completed = dict(options)
    is_anonymous = options.get("anon", False)
    named = not _CREDENTIALS.isdisjoint(options) or any(str(name).startswith("aws_") for name in client)
    if not is_anonymous and not named and {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} <= found.keys():
        completed |= {"key": found["AWS_ACCESS_KEY_ID"], "secret": found["AWS_SECRET_ACCESS_KEY"]}
        completed |= {"token": found["AWS_SESSION_TOKEN"]} if "AWS_SESSION_TOKEN" in found else {}
    wanted = {
        "region_name": ("AWS_REGION", "AWS_DEFAULT_REGION"),
        "endpoint_url": () if _ignores_endpoints(environment) else ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    }
    for name, variables in wanted.items():
        set_there = [found[variable] for variable in variables if variable in found]
        if set_there and name not in options and name not in client:
            completed[name] = set_there[0]
    return completed


def _ignores_endpoints(environment: Mapping[str, str]) -> bool:
    return environment.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true"


def _nested(options: dict[str, Any]) -> dict[str, Any]:
    """The options, with those that s3fs takes as arguments of the client or its configuration put in their place."""
    region, style = options.pop("region_name", None), options.pop("addressing_style", None)
    if region is not None:
        options["client_kwargs"] = {"region_name": region, **options.get("client_kwargs", {})}
    if style is not None:
        config = options.get("config_kwargs", {})
        options["config_kwargs"] = {**config, "s3": {"addressing_style": style, **config.get("s3", {})}}
    return options
