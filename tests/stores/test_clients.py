"""What a store of objects does when its server is busy, fails, cuts answers, or is another one than was meant."""

from __future__ import annotations

import gc
import importlib.util
import multiprocessing
import os
import pickle
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest

from lakemerge.errors import DependencyMissingError, InputError, StoreError
from lakemerge.storage import AzureStore, GCSStore, Put, Store, open_store, place_of
from lakemerge.storage.azure import AzureClient
from lakemerge.storage.cloud_client import CloudClient
from lakemerge.storage.object_store import ObjectStore
from lakemerge.storage.probe import probe
from tests.s3.wire import Answer, Wire
from tests.stores.servers import Cloud, Place
from tests.stores.wire import gcs_wire_server

LOG = "_delta_log/{:020}.json"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The pauses between tries, which end at once."""
    found: list[int] = []
    monkeypatch.setattr(CloudClient, "_pause", lambda self, number: found.append(number))
    return found


@pytest.fixture
def store(cloud: Cloud, wire: Wire) -> ObjectStore[Any]:
    opened = open_store(f"{cloud.scheme}://bucket/t", wire.options)
    assert isinstance(opened, cloud.store)
    opened.put_if_absent("first", b"")  # the endpoint is tried out once
    return opened


FAILURES = [Answer("never", status) for status in (408, 429, 500, 503)] + [
    Answer("now", 503), Answer("now", "closed"), Answer("never", "closed"),
]  # fmt: skip


@pytest.mark.parametrize("failure", FAILURES, ids=str)
def test_a_write_that_fails_in_passing_is_repeated(
    failure: Answer, store: ObjectStore[Any], wire: Wire, pauses: list[int]
) -> None:
    wire.puts.extend([failure, failure])
    store.put(LOG.format(1), b"x")
    assert (wire.put_count, pauses) == (3, [1, 2])
    assert store.get(LOG.format(1)) == b"x"


READS = [Answer("now", status) for status in (429, 500, 503)] + [Answer("now", "closed"), Answer("now", "cut")]


@pytest.mark.parametrize("failure", READS, ids=str)
def test_a_read_that_fails_or_is_cut_is_repeated_and_never_short(
    failure: Answer, store: ObjectStore[Any], wire: Wire, pauses: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(LOG.format(1), b"0123456789")
    answers = [failure, failure]
    truly = wire.answer_to
    monkeypatch.setattr(
        wire,
        "answer_to",
        lambda method, name: answers.pop() if answers and "0001.json" in name else truly(method, name),
    )
    assert store.get(LOG.format(1)) == b"0123456789"
    assert not answers
    answers[:] = [failure]
    found = store.stat(LOG.format(1))
    assert found is not None
    assert found.size_bytes == 10
    answers[:] = [failure] * 100
    with pytest.raises(StoreError):
        store.get(LOG.format(1))
    assert len(answers) >= 100 - 4 * CloudClient.tries


def test_a_store_that_is_busy_for_good_is_an_error_after_some_tries(
    store: ObjectStore[Any], wire: Wire, pauses: list[int]
) -> None:
    wire.puts.extend([Answer("never", 503)] * 100)
    with pytest.raises(StoreError) as caught:
        store.put(LOG.format(1), b"x")
    assert wire.put_count == CloudClient.tries
    assert len(pauses) == CloudClient.tries - 1
    assert caught.value.facts["store_code"] in ("backendError", "ServerBusy")


@pytest.mark.parametrize("status", [400, 401, 403])
def test_a_refusal_is_not_repeated(store: ObjectStore[Any], wire: Wire, pauses: list[int], status: int) -> None:
    for ask in (store.put, store.put_if_absent):
        wire.begin(wire.objects, [Answer("never", status)], [])
        with pytest.raises(StoreError):
            ask(LOG.format(2), b"x")
        assert (wire.put_count, pauses) == (1, [])


def test_a_replacement_is_sent_once(store: ObjectStore[Any], wire: Wire, pauses: list[int]) -> None:
    store.put(LOG.format(1), b"x")
    listed = store.stat(LOG.format(1))
    assert listed is not None
    for failure in (Answer("now", "closed"), Answer("never", 503), Answer("now", 500)):
        wire.begin(wire.objects, [failure], [])
        there = store.stat(LOG.format(1))
        assert there is not None
        with pytest.raises(StoreError):
            store.replace_exact(there, b"y")
        assert (wire.put_count, pauses) == (1, [])


def test_one_write_a_second_of_an_object_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As GCS has it. The pauses are counted on a clock of the test's own."""
    now = [0.0]
    monkeypatch.setattr(
        "lakemerge.storage.cloud_client.time.sleep", lambda seconds: now.__setitem__(0, now[0] + seconds)
    )
    with gcs_wire_server() as wire:
        wire.seconds = lambda: now[0]
        store = open_store("gs://bucket/t", wire.options)
        for number in range(5):
            store.put("_delta_log/_last_checkpoint", bytes([number]))
            assert store.get("_delta_log/_last_checkpoint") == bytes([number])
    assert 4 <= now[0] < 12


def test_a_server_that_keeps_part_of_a_part_gets_the_rest() -> None:
    with gcs_wire_server() as wire:
        store = open_store("gs://bucket/t", wire.options)
        content = bytes(range(256)) * (40 << 12)
        with store.open_output("large") as file:
            file.write(content[: 20 << 20])
            wire.short = 1000
            file.write(content[20 << 20 :])
        assert store.get("large") == content


def test_a_probe_finds_what_the_server_keeps_and_leaves_nothing(server: Place, place: str) -> None:
    result = probe(f"{place}/lake", server.options)
    found = {finding.promise: finding.verdict for finding in result.findings}
    assert result.ok
    assert found.pop("deletes are conditional") in ("kept", "weak")
    assert set(found.values()) == {"kept"}
    assert len(found) == 8
    store = open_store(place, server.options)
    assert isinstance(store, server.cloud.store)
    assert [*store._client.listed("", "")] == []


def test_a_missing_bucket_is_no_missing_file(server: Place) -> None:
    if not server.is_emulator:
        pytest.skip("the scripted server has every bucket; make test-stores runs this")
    store = open_store(f"{server.cloud.scheme}://no-such-bucket/t", server.options)
    if server.cloud.name != "gcs":  # fake-gcs-server says the same of a missing file
        with pytest.raises(StoreError, match="no-such-bucket"):
            store.get("file")
    for use in (
        lambda: list(store.list("")),
        lambda: store.put("file", b"x"),
        lambda: store.put_if_absent("file", b"x"),
    ):
        with pytest.raises(StoreError, match="no-such-bucket"):
            use()


def _get_in_child(store: Store, answers: multiprocessing.SimpleQueue[bytes]) -> None:
    answers.put(store.get("file"))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_connects_anew(server: Place, place: str) -> None:
    store = open_store(f"{place}/t", server.options)
    store.put("file", b"x")
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=_get_in_child, args=(store, answers))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert answers.get() == b"x"
    assert store.get("file") == b"x"


FORKED = """
import os, sys
from lakemerge.storage import open_store
from lakemerge.storage.cloud_client import CloudClient
CloudClient.tries = 1
store = open_store({url!r}, {options!r})
store.put("file", b"x")
if os.fork() == 0:
    store.put("of the child", store.get("file"))
    sys.exit()  # runs what Python runs at its end
_, status = os.wait()
store.put("of the parent", store.get("of the child"))
sys.exit(status)
"""
KILLED = """
import os
from lakemerge.storage import open_store
store = open_store({url!r}, {options!r})
with store.open_output("large") as file:
    file.write(bytes((32 << 20) + 1))
    os._exit(77)
"""


def in_a_process(code: str, server: Place, place: str) -> int:
    patient = {"read_timeout" if server.cloud.name == "azure" else "requests_timeout": 20}
    command = [sys.executable, "-c", code.format(url=f"{place}/t", options={**server.options, **patient})]
    return subprocess.run(command, check=False, cwd=ROOT, timeout=240).returncode


@pytest.mark.long
def test_a_forked_child_that_ends_as_python_does_leaves_its_parent_alone(server: Place, place: str) -> None:
    """What Python closes at the end of the child is also the parent's."""
    assert in_a_process(FORKED, server, place) == 0
    assert open_store(f"{place}/t", server.options).get("of the parent") == b"x"


@pytest.mark.long
def test_an_upload_of_a_killed_process_is_not_seen(server: Place, place: str) -> None:
    assert in_a_process(KILLED, server, place) == 77
    store = open_store(f"{place}/t", server.options)
    assert store.stat("large") is None
    assert [*store.list("")] == []
    with store.open_output("large") as file:
        file.write(b"x")
    assert store.get("large") == b"x"


def test_a_pickle_has_the_options_and_opens_the_same_place(
    server: Place, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And variables go along with a store that is sent where there are none."""
    options = {**server.options}
    with monkeypatch.context() as here:
        if server.cloud.name == "azure":
            here.setenv("AZURE_STORAGE_CONNECTION_STRING", str(options.pop("connection_string")))
        else:
            here.setenv("STORAGE_EMULATOR_HOST", str(options.pop("endpoint_url")).removeprefix("http://"))
        sent = pickle.dumps(open_store(f"{place}/t", options))
    store: Store = pickle.loads(sent)
    assert store.url == f"{place}/t"
    assert store.put_if_absent("file", b"x") is Put.CREATED
    assert open_store(f"{place}/t", server.options).get("file") == b"x"


def test_a_store_that_nobody_uses_is_forgotten(store: ObjectStore[Any], cloud: Cloud) -> None:
    store.get("first")
    connection = weakref.ref(store._client._connections[os.getpid()])
    store.__dict__.clear()
    gc.collect()
    assert connection() is None


def test_without_its_package_a_store_says_what_to_install(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    truly = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *more: None if name == cloud.client.package else truly(name, *more)
    )
    with pytest.raises(DependencyMissingError, match=rf"pip install lakemerge\[{cloud.name}\]"):
        open_store(f"{cloud.scheme}://bucket/t")


def test_urls() -> None:
    host = "acc.dfs.core.windows.net"
    options = {"account_name": "acc", "account_key": "a2V5"}
    cases: dict[str, tuple[type[Store], str]] = {
        "gs://bb/a/t/": (GCSStore, "gs://bb/a/t"),
        "gcs://bb": (GCSStore, "gs://bb"),
        "az://cc/t": (AzureStore, "az://cc/t"),
        "abfs://cc/t": (AzureStore, "az://cc/t"),
        f"abfss://cc@{host}/t": (AzureStore, f"abfss://cc@{host}/t"),
        f"abfs://cc@{host}": (AzureStore, f"abfss://cc@{host}"),
    }
    for given, (kind, url) in cases.items():
        store = open_store(given, {} if kind is GCSStore else options)
        assert (type(store), store.url) == (kind, url)
        assert place_of(given) == place_of(url) == url
        assert store.spark_url("x") == f"{url}/x"
    account = open_store(f"abfss://cc@{host}/t")
    assert isinstance(account, AzureStore)
    assert account._options["account_host"] == "acc.blob.core.windows.net"
    client = account._client
    assert isinstance(client, AzureClient)
    with pytest.raises(InputError, match="another account"):
        open_store(f"abfss://cc@{host}/t", {"account_name": "other"})
    for wrong in (
        "gs://",
        "gs:///t",
        "gs://k:s@b/t",
        "az://",
        "az:///t",
        "abfss://cc@/t",
        "abfss://u:p@cc/t",
        "abfss://cc@a b/t",
    ):
        with pytest.raises(InputError):
            open_store(wrong, options)
