from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends

from lakemerge.errors import DependencyMissingError, InputError, StoreError
from lakemerge.storage import Put, S3Store, Store, open_store
from lakemerge.storage.base import NothingCreatedError
from lakemerge.storage.clock import store_time_ms
from lakemerge.storage.probe import probe
from lakemerge.storage.s3_client import S3Client
from lakemerge.storage.s3_options import s3fs_options
from lakemerge.testing.store_suite import StoreSuite
from tests.s3.servers import KEY, SECRET, Endpoint, S3Server, answering

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

PROBE = "_lakemerge/.conditional-put"
NO_RETRIES = {"total_max_attempts": 1}


def read_at(file: Any, size_bytes: int, start: int) -> bytes:
    # Untyped, as the stubs of pyarrow leave the offset out.
    return bytes(file.read_at(size_bytes, start))


class TestS3Store(StoreSuite):
    race_processes = 4
    race_paths = 15

    @pytest.fixture
    def store(self, endpoint: Endpoint, place: str) -> Store:
        return open_store(f"{place}/some prefix/table=%20", endpoint.options)


@pytest.mark.long
class TestS3StoreAtTheRootOfABucket(StoreSuite):
    race_processes = 2
    race_paths = 3

    @pytest.fixture
    def store(self, endpoint: Endpoint, place: str) -> Store:
        return open_store(place.replace("s3:", "s3a:") + "/", endpoint.options)


@pytest.fixture
def store(server: S3Server, bucket: str) -> S3Store:
    """A store that has looked at its endpoint."""
    store = S3Store(f"s3://{bucket}/t", server.options)
    assert store.put_if_absent("first", b"") is Put.CREATED
    server.requests.clear()
    return store


def test_one_request_creates(store: S3Store, server: S3Server, bucket: str) -> None:
    assert store.put_if_absent("log/1", b"x") is Put.CREATED
    assert store.put_if_absent("log/1", b"x") is Put.EXISTS
    assert server.requests == [f"PUT /{bucket}/t/log/1"] * 2


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize(
    "status", ["500 Internal Server Error", "503 Slow Down", "429 Too Many Requests", "400 Request Timeout"]
)
def test_failures_that_do_not_tell_are_unknown(store: S3Store, server: S3Server, status: str, landed: bool) -> None:
    code = "RequestTimeout" if status.startswith("400") else "SlowDown" if status.startswith("503") else "InternalError"
    server.faults.append(answering(status, code, after_writing=landed))
    assert store.put_if_absent("log/1", b"x") is Put.UNKNOWN
    assert len(server.requests) == 1  # nothing repeats it behind our back
    assert (store.stat("log/1") is not None) == landed
    assert store.put_if_absent("log/1", b"x") is (Put.EXISTS if landed else Put.CREATED)


def test_no_answer_at_all_is_unknown(server: S3Server, bucket: str, caplog: pytest.LogCaptureFixture) -> None:
    def times_out(_server: S3Server, _environ: WSGIEnvironment, _start: StartResponse) -> Iterable[bytes]:
        time.sleep(1.5)
        raise ConnectionAbortedError

    store = S3Store(f"s3://{bucket}/t", {**server.options, "config_kwargs": {"read_timeout": 1}})
    assert store.put_if_absent("first", b"") is Put.CREATED
    server.faults.append(times_out)
    with caplog.at_level(logging.DEBUG, logger="lakemerge"):
        assert store.put_if_absent("log/1", b"x") is Put.UNKNOWN
    assert "ReadTimeoutError" in caplog.text
    options = {**server.options, "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "config_kwargs": {"retries": NO_RETRIES}}
    nowhere = S3Store(f"s3://{bucket}/t", options)
    assert nowhere.put_if_absent("log/1", b"x") is Put.UNKNOWN
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:9"):
        list(nowhere.list(""))
    assert SECRET not in caplog.text


@pytest.mark.parametrize("code", ["ConditionalRequestConflict", "OperationAborted"])
def test_a_conflict_in_progress_is_unknown_and_not_sent_again(store: S3Store, server: S3Server, code: str) -> None:
    server.faults.append(answering("409 Conflict", code))
    assert store.put_if_absent("log/1", b"x") is Put.UNKNOWN
    assert len(server.requests) == 1
    assert store.put_if_absent("log/1", b"x") is Put.CREATED


def test_an_upload_that_was_refused_says_whether_it_was_sent(store: S3Store, server: S3Server, bucket: str) -> None:
    server.faults.append(answering("403 Forbidden", "AccessDenied"))
    with pytest.raises(StoreError) as caught:
        store.put_if_absent("log/1", b"x")
    assert not isinstance(caught.value, NothingCreatedError)
    unsigned = S3Store(f"s3://{bucket}/t", {"AWS_ENDPOINT_URL": server.options["AWS_ENDPOINT_URL"]})
    with pytest.raises(NothingCreatedError, match="Give credentials"):
        unsigned.put_if_absent("log/1", b"x")


def test_exact_deletions_where_the_endpoint_ignores_the_condition(store: S3Store, server: S3Server) -> None:
    """As moto does. It is asked once, by an object of the table, and each object is looked at before it is deleted."""
    for name in ("a", "b", "c"):
        store.put(f"log/{name}", b"old")
    listed = [*store.list("log")]
    store.put("log/b", b"new")
    server.requests.clear()
    for _ in range(2):
        assert [file.path for file in store.delete_exact(listed)] == ["log/b"]
        assert [file.path for file in store.list("")] == ["first", "log/b"]
    asked = [request for request in server.requests if ".conditional-delete" in request]
    assert len([request for request in asked if request.startswith("PUT")]) == 1
    looks = [request for request in server.requests if request.startswith("HEAD") and "/log/" in request]
    assert len(looks) == 6


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        ("403 Forbidden", "AccessDenied", "as told"),
        ("404 Not Found", "NoSuchBucket", "as told"),
        ("400 Bad Request", "InvalidArgument", "as told"),
        ("501 Not Implemented", "NotImplemented", "no conditional writes"),
    ],
)
def test_refusals_are_errors(store: S3Store, server: S3Server, status: str, code: str, says: str) -> None:
    server.faults.append(answering(status, code))
    with pytest.raises(StoreError, match=says) as caught:
        store.put_if_absent("log/1", b"x")
    assert store.stat("log/1") is None
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_an_endpoint_that_ignores_the_condition_is_refused(server: S3Server, bucket: str) -> None:
    server.ignores_conditions = True
    store = open_store(f"s3://{bucket}/t", server.options)
    for _ in range(2):
        with pytest.raises(StoreError, match="ignores 'If-None-Match"):
            store.put_if_absent("log/1", b"x")
    assert store.stat("log/1") is None


def test_a_probe_finds_an_endpoint_that_ignores_the_condition(server: S3Server, bucket: str) -> None:
    server.ignores_conditions = True
    result = probe(f"s3://{bucket}/lake", server.options)
    assert not result.ok
    assert "ignores 'If-None-Match" in result.findings[0].detail
    assert [*S3Client(bucket, s3fs_options(server.options, {})).listed("", "")] == []


def test_the_endpoint_is_asked_once_per_store(server: S3Server, bucket: str) -> None:
    for number, asked in enumerate((2, 1)):
        store = open_store(f"s3://{bucket}/t", server.options)
        for path in ("a", "b"):
            assert store.put_if_absent(f"{number}/{path}", b"x") is Put.CREATED
        probes = [request for request in server.requests if PROBE in request]
        assert probes == [f"PUT /{bucket}/t/{PROBE}"] * asked
        server.requests.clear()
        assert [file.path for file in store.list("") if file.path.startswith("_")] == []
    server.faults.append(answering("500 Internal Server Error", "InternalError"))
    store = open_store(f"s3://{bucket}/t", server.options)
    assert store.put_if_absent("c", b"x") is Put.UNKNOWN
    assert store.stat("c") is None
    assert store.put_if_absent("c", b"x") is Put.CREATED


def test_a_botocore_without_the_condition_is_refused(server: S3Server, bucket: str) -> None:
    store = S3Store(f"s3://{bucket}/t", server.options)
    service = store._client._connect(single_request=True).s3.meta.service_model
    del service.operation_model("PutObject").input_shape.members["IfNoneMatch"]
    with pytest.raises(DependencyMissingError, match="botocore"):
        store.put_if_absent("log/1", b"x")
    assert store.stat("log/1") is None


def test_reads_ask_no_more_than_they_need(store: S3Store, server: S3Server, bucket: str) -> None:
    store.put("data", bytes(range(256)) * 4096)
    for number in range(3):
        store.put(f"log/{number}", b"x")
    server.requests.clear()
    with store.open_input("data", size_bytes=1 << 20) as file:
        assert server.requests == []
        assert read_at(file, 4, 258) == b"\x02\x03\x04\x05"
        assert read_at(file, 4, 300) == bytes(range(44, 48))
        assert server.requests == [f"GET /{bucket}/t/data"]
        assert read_at(file, 1 << 17, 1 << 17) == bytes(range(256)) * 512
    assert server.requests == [f"GET /{bucket}/t/data"] * 2
    server.requests.clear()
    assert len(store.get("data")) == 1 << 20
    assert server.requests == [f"GET /{bucket}/t/data"]
    server.requests.clear()
    assert [file.path for file in store.list("log", start_after="log/0")] == ["log/1", "log/2"]
    (request,) = server.requests
    assert "start-after=t%2Flog%2F0" in request
    # A listing is never answered from memory.
    store.put("log/3", b"x")
    assert len(list(store.list("log"))) == 4


def test_a_small_file_is_fetched_whole_and_once(store: S3Store, server: S3Server, bucket: str) -> None:
    """Buckets read their parts of a log file side by side."""
    content = bytes(range(256)) * 2048
    store.put("log/1", content)
    server.requests.clear()

    def part(number: int) -> bytes:
        with store.open_input("log/1", size_bytes=len(content)) as file:
            return read_at(file, 1000, number * 1000)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(part, range(100)))
    assert found == [content[number * 1000 : number * 1000 + 1000] for number in range(100)]
    assert server.requests == [f"GET /{bucket}/t/log/1"]
    copy = pickle.loads(pickle.dumps(store))
    with copy.open_input("log/1", size_bytes=len(content)) as file:
        assert file.read() == content
    assert server.requests == [f"GET /{bucket}/t/log/1"] * 2, "a pickle holds no files"


def test_announced_reads_are_fetched_together(store: S3Store, server: S3Server, bucket: str) -> None:
    content = bytes(range(256)) * 4096 * 4
    store.put("data", content)
    server.requests.clear()
    get = f"GET /{bucket}/t/data"
    with store.open_input("data", size_bytes=len(content)) as file:
        # The second range is near the first, so one request has both; the third is far away.
        ranges = [(1000, 200_000), (210_000, 300_000), (2_000_000, 2_100_000)]
        file.will_read(ranges)
        assert server.requests == [get] * 2
        # In any order, and as one read over a gap.
        assert read_at(file, 100_000, 2_000_000) == content[2_000_000:2_100_000]
        assert read_at(file, 299_000, 1000) == content[1000:300_000]
        assert server.requests == [get] * 2
        # What was read is let go.
        assert read_at(file, 100_000, 2_000_000) == content[2_000_000:2_100_000]
        assert server.requests == [get] * 3
        # What nobody announced is fetched as before, and takes nothing of what was.
        file.will_read([(0, 100_000)])
        assert read_at(file, 100_000, 3_000_000) == content[3_000_000:3_100_000]
        assert read_at(file, 100_000, 0) == content[:100_000]
        assert server.requests == [get] * 5
        # A read may go beyond what was announced.
        file.will_read([(0, 100_000)])
        assert read_at(file, 200_000, 50_000) == content[50_000:250_000]


def test_a_large_announced_range_is_fetched_in_parts(store: S3Store, server: S3Server, bucket: str) -> None:
    content = os.urandom(1 << 20) * 20
    store.put("data", content)
    server.requests.clear()
    ranges = [(number << 20, (number + 1) << 20) for number in range(20)]
    with store.open_input("data", size_bytes=len(content)) as file:
        file.will_read(ranges)
        assert file.read() == content
    assert server.requests == [f"GET /{bucket}/t/data"] * 2


def test_an_announced_range_of_a_file_that_is_gone_is_an_error(store: S3Store) -> None:
    with store.open_input("data", size_bytes=1 << 20) as file, pytest.raises(FileNotFoundError):
        file.will_read([(0, 10), (500_000, 600_000)])


def test_an_input_shorter_than_told_is_an_error(store: S3Store) -> None:
    store.put("data", b"short")
    with pytest.raises(StoreError, match="ends at 5, not at 10"), store.open_input("data", size_bytes=10) as file:
        file.read()


def test_lists_and_deletes_in_many_pages(store: S3Store, server: S3Server, bucket: str) -> None:
    paths = [f"log/{number:020}" for number in range(1005)]
    foreign = ["t/log//x", "t/log/folder/", "t/./x", "tt", "s"]
    for key in [*foreign, *(f"t/{path}" for path in paths)]:
        s3_backends[DEFAULT_ACCOUNT_ID]["aws"].put_object(bucket, key, b"")
    server.requests.clear()
    assert [file.path for file in store.list("log")] == paths
    assert len(server.requests) == 2
    server.requests.clear()
    store.delete(paths)
    assert len(server.requests) == 2
    assert [file.path for file in store.list("")] == ["first"]


def test_a_clean_up_aborts_uploads_that_nobody_completed(store: S3Store, server: S3Server) -> None:
    store.put("file", b"x")
    other = open_store(store.url.rpartition("/")[0] + "/other", server.options)
    assert isinstance(other, S3Store)
    for owner, name in ((store, "left"), (store, "also"), (other, "elsewhere")):
        owner._client.call("create_multipart_upload", owner._key(name))
    later_ms = store_time_ms(store) + 60_000
    for dry_run in (True, False):
        found = store.clean_up(before_ms=later_ms, dry_run=dry_run)
        assert sorted(upload.path for upload in found) == ["also", "left"]
    assert store.clean_up(before_ms=later_ms, dry_run=False) == ()
    (upload,) = store._client.call("list_multipart_uploads")["Uploads"]
    assert upload["Key"].endswith("elsewhere"), "another table's"
    assert store.get("file") == b"x"


def test_a_missing_bucket_is_no_missing_file(server: S3Server) -> None:
    store = open_store("s3://no-such-bucket/t", server.options)
    with pytest.raises(StoreError, match="bucket"):
        store.get("file")
    with pytest.raises(StoreError, match="bucket"):
        list(store.list(""))
    with pytest.raises(StoreError, match="bucket"):
        store.put_if_absent("file", b"x")


def _get_in_child(store: S3Store, answers: multiprocessing.SimpleQueue[bytes]) -> None:
    answers.put(store.get("file"))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_connects_anew(store: S3Store) -> None:
    store.put("file", b"x")
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=_get_in_child, args=(store, answers))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert answers.get() == b"x"
    assert store.get("file") == b"x"


def test_options_that_are_wrong_are_told_without_their_values() -> None:
    given = {
        "sekret": SECRET, "secret": 2, "anon": SECRET, "key": "a", "AWS_ACCESS_KEY_ID": SECRET,
        "addressing_style": SECRET,
    }  # fmt: skip
    with pytest.raises(InputError) as refused:
        s3fs_options(given, {})
    assert SECRET not in str(refused.value) + repr(refused.value.facts)
    assert refused.value.problems == (
        "'sekret' is unknown",
        "'secret' is not a string",
        "'anon' is not true or false",
        "'AWS_ACCESS_KEY_ID' is given twice, under two names",
        "'addressing_style' is not one of auto, path, virtual",
    )


def test_options_may_all_be_strings() -> None:
    given = {
        "aws_access_key_id": "k",
        "AWS_SESSION_TOKEN": "t",
        "AWS_REGION": "eu-north-1",
        "anon": "False",
        "addressing_style": "virtual",
        "config_kwargs": '{"max_pool_connections": 3, "s3": {"payload_signing_enabled": true}}',
        "client_kwargs": {"verify": False},
    }
    assert s3fs_options(given, {}) == {
        "key": "k",
        "token": "t",
        "anon": False,
        "config_kwargs": {
            "max_pool_connections": 3,
            "s3": {"addressing_style": "virtual", "payload_signing_enabled": True},
        },
        "client_kwargs": {"region_name": "eu-north-1", "verify": False},
    }


PAIR = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
PLACE = {"AWS_REGION": "eu-north-1", "AWS_ENDPOINT_URL": "http://all"}


@pytest.mark.parametrize(
    ("given", "variables", "expected"),
    [
        ({}, PAIR, {"key": "k", "secret": "s"}),
        ({}, {**PAIR, "AWS_SESSION_TOKEN": "t", "AWS_PROFILE": "p"}, {"key": "k", "secret": "s", "token": "t"}),
        ({}, {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": ""}, {}),
        ({"key": "mine", "secret": "m"}, {**PAIR, "AWS_SESSION_TOKEN": "t"}, {"key": "mine", "secret": "m"}),
        ({"AWS_PROFILE": "mine"}, PAIR, {"profile": "mine"}),
        ({"anon": "true"}, PAIR, {"anon": True}),
        ({"anon": "false"}, PAIR, {"anon": False, "key": "k", "secret": "s"}),
        (
            {"client_kwargs": {"aws_access_key_id": "mine"}},
            PAIR,
            {"client_kwargs": {"aws_access_key_id": "mine"}},
        ),
        ({}, PLACE, {"client_kwargs": {"region_name": "eu-north-1"}, "endpoint_url": "http://all"}),
        ({"endpoint_url": "http://mine", "AWS_REGION": "r"}, PLACE, {
            "client_kwargs": {"region_name": "r"}, "endpoint_url": "http://mine",
        }),
        ({}, {**PLACE, "AWS_ENDPOINT_URL_S3": "http://s3", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "false"}, {
            "client_kwargs": {"region_name": "eu-north-1"}, "endpoint_url": "http://s3",
        }),
        ({}, {"AWS_DEFAULT_REGION": "r"}, {"client_kwargs": {"region_name": "r"}}),
        ({}, {"AWS_ENDPOINT_URL": "http://x", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "TRUE"}, {}),
        ({"client_kwargs": {"region_name": "mine", "endpoint_url": "http://mine"}}, PLACE, {
            "client_kwargs": {"region_name": "mine", "endpoint_url": "http://mine"},
        }),
    ],
)  # fmt: skip
def test_variables_complete_the_options(
    given: dict[str, object], variables: dict[str, str], expected: dict[str, object]
) -> None:
    assert s3fs_options(given, variables) == expected
    assert s3fs_options(expected, variables) == expected, "once more, where an executor unpickles it"


def test_variables_are_enough(endpoint: Endpoint, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And go along with a store that is sent where there are none."""
    with monkeypatch.context() as here:
        for name, value in endpoint.options.items():
            here.setenv(name, str(value))
        sent = pickle.dumps(open_store(f"{place}/t"))
    store: Store = pickle.loads(sent)
    assert store.put_if_absent("file", b"x") is Put.CREATED
    assert store.get("file") == b"x"


def test_buckets_by_path_or_by_host(server: S3Server, bucket: str) -> None:
    """At an endpoint of one's own the bucket is in the path, unless told otherwise."""
    options = {**server.options, "config_kwargs": {"retries": NO_RETRIES, "connect_timeout": 5}}
    for style in ({}, {"addressing_style": "auto"}, {"addressing_style": "path"}):
        named = {**options, "AWS_ENDPOINT_URL": server.url.replace("127.0.0.1", "localhost"), **style}
        S3Store(f"s3://{bucket}/t", named).put("file", b"x")
        assert server.requests.pop() == f"PUT /{bucket}/t/file"
    virtual = {**options, "AWS_ENDPOINT_URL": "http://s3.invalid", "addressing_style": "virtual"}
    with pytest.raises(StoreError, match=rf"{bucket}\.s3\.invalid"):
        S3Store(f"s3://{bucket}/t", virtual).put("file", b"x")


def test_without_credentials_nothing_is_sent(server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    options = {name: value for name, value in server.options.items() if value not in (KEY, SECRET)}
    with pytest.raises(StoreError, match="credentials"):
        open_store(f"s3://{bucket}/t", options).put_if_absent("file", b"x")
    assert server.requests == []
