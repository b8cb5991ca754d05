"""Storage options for Google's and Azure's stores, completed from the variables of this process.

They have the names of gcsfs and adlfs. All values may be strings, as in Spark: flags are ``true`` or ``false``,
mappings are JSON. Errors name every option that is unknown, given twice or of the wrong kind, and show no value, which
may be a secret.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lakemerge.errors import InputError
from lakemerge.storage.options import check_no_password, checked_options, shown_name

__all__ = ["adlfs_options", "gcsfs_options"]


@dataclass(frozen=True, slots=True)
class _Kind:
    told: str
    parsed: Callable[[object], object]
    """The value as the package takes it; ``None`` if it is of the wrong kind."""


def _flag(value: object) -> object:
    return value if isinstance(value, bool) else {"true": True, "false": False}.get(str(value).lower())


def _text(value: object) -> object:
    return value if isinstance(value, str) else None


def _number(value: object) -> object:
    if isinstance(value, bool):
        return None
    try:
        found = float(str(value))
    except ValueError:
        return None
    return found if 0 < found < float("inf") else None


def _mapping(value: object) -> object:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return dict(value) if isinstance(value, Mapping) else None


def _token(value: object) -> object:
    """A word of gcsfs, the name of a file, a mapping or its JSON text, or an object of google.auth."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        return _mapping(value)
    return dict(value) if isinstance(value, Mapping) else value


_FLAG, _TEXT, _NUMBER = _Kind("true or false", _flag), _Kind("a string", _text), _Kind("a number of seconds", _number)
_GOOGLE: Mapping[str, _Kind] = {
    "token": _Kind("a string, a mapping or credentials", _token),
    "project": _TEXT,
    "access": _TEXT,
    "endpoint_url": _TEXT,
    "requester_pays": _Kind("true, false or a project", lambda value: value if _flag(value) is None else _flag(value)),
    "requests_timeout": _NUMBER,
    "session_kwargs": _Kind("a mapping", _mapping),
}
_AZURE: Mapping[str, _Kind] = {
    **dict.fromkeys(
        (
            *("account_name", "account_key", "connection_string", "sas_token", "client_id", "client_secret"),
            *("tenant_id", "account_host", "location_mode"),
        ),
        _TEXT,
    ),
    "credential": _Kind("a string or credentials", lambda value: value),
    "anon": _FLAG,
    "connection_timeout": _NUMBER,
    "read_timeout": _NUMBER,
}
_AZURE_VARIABLES = {
    f"AZURE_STORAGE_{name.upper()}": name
    for name in (
        *("connection_string", "account_name", "account_key", "sas_token", "client_id", "client_secret", "tenant_id"),
    )
}
_AZURE_CREDENTIALS = frozenset(
    {"account_key", "connection_string", "credential", "sas_token", "client_id", "client_secret", "tenant_id", "anon"}
)


def gcsfs_options(storage_options: Mapping[str, object], environment: Mapping[str, str]) -> dict[str, Any]:
    """Options as gcsfs takes them. The endpoint of ``STORAGE_EMULATOR_HOST`` in ``environment`` goes along to other
    processes."""
    options = _parsed("Google Cloud Storage", storage_options, _GOOGLE, {})
    emulator = environment.get("STORAGE_EMULATOR_HOST", "")
    if "endpoint_url" not in options and emulator not in ("", "default"):
        options["endpoint_url"] = emulator
    endpoint = str(options.get("endpoint_url", ""))
    if endpoint:
        check_no_password(endpoint)
        options["endpoint_url"] = (endpoint if "://" in endpoint else f"http://{endpoint}").rstrip("/")
    return options


def adlfs_options(
    storage_options: Mapping[str, object], environment: Mapping[str, str], account: str | None
) -> dict[str, Any]:
    """Options as adlfs takes them. What the options lack is taken from the ``AZURE_STORAGE_`` variables in
    ``environment``, and so goes along to other processes. Credentials are taken together or not at all.

    :param account: the host of the account in the URL, such as ``account.dfs.core.windows.net``.
    """
    options = _parsed("Azure", storage_options, _AZURE, _AZURE_VARIABLES)
    if account is not None:
        name, _, domain = account.partition(".")
        if options.setdefault("account_name", name) != name:
            raise InputError("the URL names another account than the storage option account_name")
        if domain:
            options.setdefault("account_host", f"{name}.{domain.replace('dfs.', 'blob.', 1)}")
    named = not _AZURE_CREDENTIALS.isdisjoint(options)
    for variable, name in _AZURE_VARIABLES.items():
        if environment.get(variable) and name not in options and not (named and name in _AZURE_CREDENTIALS):
            options[name] = environment[variable]
    return options


def _parsed(
    store: str, given: Mapping[str, object], known: Mapping[str, _Kind], variables: Mapping[str, str]
) -> dict[str, Any]:
    options: dict[str, Any] = {}
    problems = []
    names = frozenset({*known, *variables})
    for word, value in checked_options(given).items():
        name = variables.get(word.upper(), word)
        if name not in known:
            problems.append(f"{shown_name(word, names)} is unknown")
        elif name in options:
            problems.append(f"{word!r} is given twice, under two names")
        elif value is not None:
            options[name] = known[name].parsed(value)
            if options[name] is None:
                problems.append(f"{word!r} is not {known[name].told}")
    if problems:
        raise InputError(
            f"storage options for {store}: {'; '.join(problems)}. Known are: {', '.join(sorted(names))}",
            problems=tuple(problems),
        )
    return options
