"""``lakemerge probe``: a store that breaks a promise is found, and nothing stays behind."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from lakemerge.cli import main
from lakemerge.errors import StoreError
from lakemerge.storage import FileStat, LocalStore, Put
from lakemerge.storage.probe import ProbeResult, probe


def verdicts(result: ProbeResult) -> dict[str, str]:
    return {finding.promise: finding.verdict for finding in result.findings}


def test_a_local_folder_keeps_what_tables_need_and_is_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("x")
    before = sorted(tmp_path.rglob("*"))
    for place in (tmp_path / "there", tmp_path / "not" / "there"):
        result = probe(place)
        assert result.ok
        assert verdicts(result) == {
            "put-if-absent keeps what is there": "kept",
            "put-if-absent is atomic": "kept",
            "deletes are conditional": "kept",
            "replacements are conditional": "weak",
            "a listing shows what was written and deleted before": "kept",
            "listings are in order of names": "kept",
            "a large file appears whole": "kept",
            "the store's clock and this machine's agree": "kept",
            "nothing stays behind": "kept",
        }
        assert sorted(tmp_path.rglob("*")) == before


def _put_over(store: LocalStore, path: str, data: bytes) -> Put:
    store.put(path, data)
    return Put.CREATED


def _look_and_put(store: LocalStore, path: str, data: bytes) -> Put:
    """What fsspec does: the race shows that it is no put-if-absent."""
    if store.stat(path) is not None:
        return Put.EXISTS
    time.sleep(0.01)  # as a request takes: on a busy machine the threads may else come one after the other
    store.put(path, data)
    return Put.CREATED


def _yes_to_all(store: LocalStore, path: str, data: bytes) -> Put:
    return Put.CREATED if LOCAL_PUT(store, path, data) is Put.CREATED or "race" in path else Put.EXISTS


def _delete_all(store: LocalStore, files: Sequence[FileStat]) -> tuple[FileStat, ...]:
    store.delete([file.path for file in files])
    return ()


def _replace_any(store: LocalStore, file: FileStat, data: bytes) -> bool:
    store.put(file.path, data)
    return True


def _late(store: LocalStore, folder: str, *, start_after: str = "") -> Iterator[FileStat]:
    return iter([*LOCAL_LIST(store, folder, start_after=start_after)][:-1])


def _by_parts(store: LocalStore, folder: str, *, start_after: str = "") -> Iterator[FileStat]:
    """As a hierarchical namespace lists."""
    return iter(sorted(LOCAL_LIST(store, folder, start_after=start_after), key=lambda file: file.path.split("/")))


LOCAL_PUT, LOCAL_LIST = LocalStore.put_if_absent, LocalStore.list
BROKEN: dict[str, tuple[str, Callable[..., object], str]] = {
    "puts over what is there": ("put_if_absent", _put_over, "put-if-absent keeps what is there"),
    "looks before it puts": ("put_if_absent", _look_and_put, "put-if-absent is atomic"),
    "says yes to the losers": ("put_if_absent", _yes_to_all, "put-if-absent is atomic"),
    "deletes whatever is there": ("delete_exact", _delete_all, "deletes are conditional"),
    "replaces whatever is there": ("replace_exact", _replace_any, "replacements are conditional"),
    "lists late": ("list", _late, "a listing shows what was written and deleted before"),
    "lists by parts": ("list", _by_parts, "listings are in order of names"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_store_that_breaks_a_promise_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method, broken, promise = BROKEN[name]
    monkeypatch.setattr(LocalStore, method, broken)
    result = probe(tmp_path / "place")
    assert verdicts(result)[promise] == "broken"
    assert not result.ok


def test_a_store_that_can_only_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "memory://place", "--json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["verdict"] == "broken"
    assert "cannot be written" in finding["detail"]


def test_a_store_that_cannot_be_reached_is_an_error_and_no_finding(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("s3fs", reason="the extra s3 is not installed")
    options = ['client_kwargs={"region_name": "us-east-1"}', 'config_kwargs={"retries": {"total_max_attempts": 1}}']
    options += ["key=an-id", "secret=hunter2", "endpoint_url=http://127.0.0.1:9"]
    assert main(["probe", "s3://bucket/lake", *(word for option in options for word in ("-o", option))]) == 4
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "127.0.0.1:9" in captured.err


def test_a_store_that_fails_in_the_middle_is_cleaned_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(store: LocalStore, path: str) -> object:
        raise StoreError("out of order")

    monkeypatch.setattr(LocalStore, "open_output", fails)
    result = probe(tmp_path / "place")
    assert verdicts(result)["a large file appears whole"] == "unknown"
    assert result.ok
    assert [*tmp_path.iterdir()] == []


def test_each_finding_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", str(tmp_path)]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert len(lines) == 9
    assert {line.split()[0] for line in lines} == {"kept", "weak"}
    assert last == f"{tmp_path} keeps what tables need, but for what is weak or unknown above"
