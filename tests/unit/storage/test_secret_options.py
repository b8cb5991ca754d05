"""Whatever is wrong with an option, no message shows its value: it may be a secret under a misspelt name.

What a server or Spark says is in ``tests/s3/test_secrets_s3.py``.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakemerge import LakeTable
from lakemerge.cli import main
from lakemerge.ingest import Files
from lakemerge.storage.options import shown_name, without_values

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCY"  # noqa: S105 - it opens nothing
QUICK = {
    "key": "k" * 8,
    "secret": "s" * 8,
    "endpoint_url": "http://127.0.0.1:1",
    "config_kwargs": {"connect_timeout": 1, "retries": {"total_max_attempts": 1}},
}
"""Options of a client that soon gives up, because nobody answers."""


def client(**options: Any) -> dict[str, Any]:
    return QUICK | options


OPTIONS: dict[str, Any] = {
    "a misspelt name": {"secrett": SECRET},
    "a name in the wrong case": {"Secret": SECRET},
    "the secret as the name": {SECRET: "x"},
    "the secret as a name like one": {"AKIAIOSFODNN7EXAMPLE" + SECRET[:4]: "x"},
    "a flag": {"anon": SECRET},
    "a style": {"addressing_style": SECRET},
    "a list as the value": {"secret": [SECRET]},
    "bytes as the value": {"secret": SECRET.encode()},
    "twice": {"secret": SECRET, "AWS_SECRET_ACCESS_KEY": SECRET},
    "a mapping that is none": {"client_kwargs": SECRET},
    "a mapping as broken JSON": {"client_kwargs": f'{{"aws_secret_access_key": "{SECRET}"'},
    "a misspelt name of the client": client(client_kwargs={"aws_secret_acess_key": SECRET}),
    "a misspelt name of the configuration": client(config_kwargs={"tokenn": SECRET}),
    "a value deep in the configuration": client(config_kwargs={"s3": {"addressing_style": SECRET}}),
    "another one": client(config_kwargs={"retries": {"mode": SECRET}}),
    "a value where the client takes none": client(config_kwargs={"proxies": SECRET}),
    "an endpoint with a password": client(endpoint_url=f"http://user:{SECRET}@127.0.0.1:1"),
    "an endpoint that is none": client(endpoint_url=SECRET),
    "a region that is none": client(region_name=f"{SECRET} x"),
    "no mapping": SECRET,
    "pairs": [("secret", SECRET)],
    "a set": {SECRET},
    "a name of bytes": {SECRET.encode(): SECRET},
    "a name that is a pair": {("secret", SECRET): 1},
}
URLS = {
    "a password": f"s3://key:{SECRET}@bucket/t",
    "a password without a slash": f"s3://key:{SECRET.replace('/', '')}@bucket/t",
    "a path of pathlib": f"s3:/key:{SECRET.replace('/', '')}@bucket/t",
    "a chain": f"zip://a::https://user:{SECRET.replace('/', '')}@host/t",
    "a token": f"https://{SECRET.replace('/', '')}@host/t",
    "a signature": f"https://host/t?sv=1&sig={SECRET}",
    "a presigned URL": f"https://host/t?X-Amz-Signature={SECRET}",
    "a file": f"file://user:{SECRET.replace('/', '')}@host/t",
}
DOORS: dict[str, Callable[[str, Any], object]] = {
    "open": lambda url, options: LakeTable.open(url, storage_options=options),
    "create": lambda url, options: LakeTable.create(url, "id INT", key=["id"], storage_options=options),
    "check": lambda url, options: LakeTable.check(url, storage_options=options),
    "files": lambda url, options: list(
        Files(url, format="json", storage_options=options).places.listed([url], recursive=True)
    ),
}


def said(error: BaseException) -> str:
    """Everything that a traceback shows, but for the lines of code, which are this test's own."""
    texts, seen = [], [error]
    for one in seen:
        texts += [str(one), repr(one), *getattr(one, "__notes__", ())]
        texts += [repr(getattr(one, "facts", None))]
        cause = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
        seen += [] if cause is None else [cause]
    return "\n".join(texts)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of which kind is checked below
        call()
    error = caught.value
    assert type(error).__module__ in ("lakemerge.errors", "mergers.errors"), "".join(traceback.format_exception(error))
    for part in (SECRET, SECRET.replace("/", "")):
        assert part not in said(error)
        assert part[:12] not in said(error)
    return str(error)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("wrong", OPTIONS)
def test_options_of_a_bucket(door: str, wrong: str, caplog: pytest.LogCaptureFixture) -> None:
    refused(lambda: DOORS[door]("s3://bucket/t", OPTIONS[wrong]))
    assert SECRET[:12] not in caplog.text


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("what", URLS)
def test_urls(door: str, what: str, caplog: pytest.LogCaptureFixture) -> None:
    refused(lambda: DOORS[door](URLS[what], None))
    assert SECRET[:12] not in caplog.text


@pytest.mark.parametrize("options", [{"tokenn": SECRET}, {"client_kwargs": {"headers": SECRET}}, SECRET])
@pytest.mark.parametrize("url", ["abcd://host/t", "ftp://127.0.0.1:1/t"])
def test_options_of_other_stores(url: str, options: Any, caplog: pytest.LogCaptureFixture) -> None:
    refused(lambda: LakeTable.open(url, storage_options=options))
    assert SECRET[:12] not in caplog.text


def test_a_package_that_judges_options_late(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> bytes:
        raise TypeError(f"_request() got an unexpected value {SECRET!r}")

    monkeypatch.setattr("fsspec.implementations.memory.MemoryFileSystem.cat_file", refuse)
    told = refused(lambda: LakeTable.open("memory://bucket/t", storage_options={"tokenn": SECRET}))
    assert "unexpected value '***'" in told


def test_the_name_helps() -> None:
    pytest.importorskip("s3fs", reason="the extra s3 is not installed")
    misspelt = OPTIONS["a misspelt name"]
    assert "'secrett' is unknown" in refused(lambda: LakeTable.open("s3://bucket/t", storage_options=misspelt))
    assert "'aws_secret_acess_key'" in refused(
        lambda: LakeTable.open("s3://bucket/t", storage_options=OPTIONS["a misspelt name of the client"])
    )


def test_properties(tmp_path: Path) -> None:
    def create(**how: Any) -> object:
        return LakeTable.create(tmp_path / "t", "id INT", key=["id"], **how)

    refused(lambda: create(properties={"lakemerge.secrett": SECRET}))
    refused(lambda: create(properties={"secrett": [SECRET]}))
    refused(lambda: create(properties=SECRET))


COMMANDS = (
    "show s3://bucket/t -o secrett={}",
    "show s3://bucket/t -o {}",
    "show s3://bucket/t -o ={}",
    "show s3://bucket/t -o {}=",
    "show s3://bucket/t -o anon={}",
    "check s3://bucket/t -o secrett={}",
    "replay {t} s3://bucket/t -o secrett={}",
    "upsert {t} s3://bucket/f.csv -o secrett={}",
    "ingest {t} s3://bucket/f/ --format json --source-option secrett={}",
    "ingest {t} s3://bucket/f/ --format json --source-option {}",
    "ingest {t} s3://bucket/f/ --format json --option {}",
    "init {t}2 --schema id~INT --key id --property {}",
    "merge-source run {job} -o secrett={}",
    "merge-source run {job} -o {}",
)


@pytest.mark.parametrize("line", COMMANDS)
def test_commands(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    LakeTable.create(tmp_path / "t", "id INT", key=["id"])
    job = tmp_path / "job.json"
    source = {"type": "merge", "version": 2, "datasets": ["a x"], "equality": []}
    job.write_text(json.dumps({"output": "s3://bucket/out", "tables": {"a": "s3://bucket/a"}, "source": source}))
    places = {"t": str(tmp_path / "t"), "job": str(job)}
    words = [word.format(SECRET, **places).replace("~", " ") for word in line.split()]
    assert main(words) in (2, 4)
    out, err = capsys.readouterr()
    assert SECRET[:12] not in out + err
    assert err.count("\n") == 1, err


@pytest.mark.parametrize("text", [SECRET, f'{{"secrett": "{SECRET}"}}', f'{{"secrett": "{SECRET}"', f'["{SECRET}"]'])
def test_options_of_the_environment(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAKEMERGE_STORAGE_OPTIONS", text)
    assert main(["show", "s3://bucket/t"]) == 2
    assert SECRET[:12] not in capsys.readouterr().err


def test_datasets_of_a_merge_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = tmp_path / "job.json"
    dataset = {"table": "s3://bucket/a", "storage_options": {"secret": SECRET}}
    source = {"type": "merge", "version": 2, "datasets": ["a x"], "equality": []}
    job.write_text(json.dumps({"output": "s3://bucket/out", "tables": {"a": dataset}, "source": source}))
    assert main(["merge-source", "run", str(job)]) == 2
    assert SECRET[:12] not in capsys.readouterr().err


def test_what_looks_like_a_name_is_shown() -> None:
    known = frozenset({"secret", "endpoint_url"})
    assert shown_name("secrett", known) == "'secrett'"
    assert shown_name("AWS_SECRET", known) == "'AWS_SECRET'"
    assert shown_name(SECRET, known) == "a name of 30 characters"
    assert shown_name("AKIAIOSFODNN7EXAMPLE", known) == "a name of 20 characters"


def test_values_at_any_depth_are_taken_out() -> None:
    options = {"a": {"b": ["abcdef", {"c": b"ghijkl"}]}, "flag": True, "n": 12345, "short": "abc"}
    assert without_values("abcdef True ghijkl 12345 abc", options) == "*** True *** *** abc"
