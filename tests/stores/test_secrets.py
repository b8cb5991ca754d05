"""Credentials show nowhere: not in logs of any level, errors, reprs, nor in the table's files."""

from __future__ import annotations

import base64
import logging
import traceback
from collections.abc import Mapping

import pyarrow as pa
import pytest

from lakemerge import LakeTable, StoreError
from lakemerge.errors import InputError
from lakemerge.storage import open_store
from lakemerge.storage.cloud_options import adlfs_options, gcsfs_options
from tests.s3.wire import Answer, Wire
from tests.stores.servers import Cloud, Place
from tests.stores.wire import ACCOUNT, ACCOUNT_KEY

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCY"  # noqa: S105 - it opens nothing
SIGNATURE = "c2lnbmF0dXJlIG9mIG5vYm9keQ%3D%3D"


def secrets_of(options: Mapping[str, object]) -> list[str]:
    text = str(options.get("connection_string", ""))
    return [part.partition("AccountKey=")[2] for part in text.split(";") if part.startswith("AccountKey=")]


def test_not_in_the_log_at_its_most_talkative(cloud: Cloud, wire: Wire, caplog: pytest.LogCaptureFixture) -> None:
    shown = []
    options = dict(wire.options)
    if cloud.name == "azure":
        shared = options.copy()
        shared["connection_string"] = f"BlobEndpoint={wire.url}/{ACCOUNT};SharedAccessSignature=sv=2024&sig={SIGNATURE}"
        given = [options, shared]
    else:
        given = [options]
    with caplog.at_level(logging.DEBUG):
        for some in given:
            wire.begin({}, [], [])
            store = open_store(f"{cloud.scheme}://bucket/t", some)
            path = f"_delta_log/{1:020}.json"
            store.put_if_absent("first", b"x")
            wire.puts.append(Answer("never", 403))
            with pytest.raises(StoreError) as caught:
                store.put_if_absent(path, b"x")
            assert store.put_if_absent(path, b"x").value == "created"
            assert store.get(path) == b"x"
            assert [*store.list("")]
            with store.open_output("large") as file:
                file.write(bytes(17 << 20))
            shown += [repr(store), store.url, store.spark_url("x"), repr(caught.value.facts)]
            shown += traceback.format_exception(caught.value)
    for secret in (ACCOUNT_KEY, SIGNATURE, "upload_id"):
        assert secret not in caplog.text + "".join(shown)


def test_not_in_the_table_nor_in_what_is_said_of_it(server: Place, place: str) -> None:
    table = LakeTable.create(
        f"{place}/t", "id BIGINT, v STRING", key=["id"], storage_options=server.options,
        properties={"delta.checkpointInterval": "2"},
    )  # fmt: skip
    for number in range(3):
        table.upsert(pa.table({"id": [number], "v": ["x"]}))
    table.compact()
    store = table.opened.handle.store
    files = [stat.path for stat in store.list("")]
    said = [table, table.opened.handle, table.history(), table.detail(), table.vacuum(), store]
    for secret in secrets_of(server.options):
        assert not [path for path in files if secret.encode() in store.get(path)]
        assert secret not in "".join(map(repr, said))


WRONG = {
    "gcs": [
        {"token": {"type": "service_account", "private_key": SECRET}},
        {"token": f'{{"private_key": "{SECRET}"'},
        {"token": SECRET},
        {"tokken": SECRET},
        {SECRET: "x"},
        {"requests_timeout": SECRET},
        {"endpoint_url": f"http://user:{SECRET}@127.0.0.1:1"},
    ],
    "azure": [
        {"account_key": SECRET},
        {"account_name": "acc", "account_key": SECRET + "!"},
        {"account_name": "acc", "credential": [SECRET]},
        {"connection_string": SECRET},
        {"connection_string": f"AccountName=acc;AccountKey={SECRET}"},
        {"connection_string": f"AccountName=acc;AccountKey={SECRET}!;BlobEndpoint=http://127.0.0.1:1/acc"},
        {"acount_key": SECRET},
        {"anon": SECRET},
        {SECRET: "x"},
        {"account_name": "acc", "account_host": "127.0.0.1:1", "sas_token": f"sv=1&sig={SECRET}"},
    ],
}


@pytest.mark.parametrize(
    ("name", "options"), [(name, given) for name, all_ in WRONG.items() for given in all_], ids=str
)
def test_no_message_shows_the_value_of_an_option(
    name: str, options: Mapping[str, object], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("lakemerge.storage.cloud_client.CloudClient.tries", 1)
    url = {"gcs": "gs://bucket/t", "azure": "az://bucket/t"}[name]
    if name == "gcs" and "token" in options:
        options = {"endpoint_url": "http://127.0.0.1:1", **options}
    with caplog.at_level(logging.DEBUG), pytest.raises((InputError, StoreError)) as caught:
        open_store(url, options).get("x")
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value.facts) + caplog.text
    assert SECRET not in shown
    assert base64.b64encode(SECRET.encode()).decode() not in shown


def test_options_have_their_kinds_and_the_variables_fill_them_up() -> None:
    assert gcsfs_options({"requester_pays": "true", "requests_timeout": "5", "token": '{"a": "b"}'}, {}) == {
        "requester_pays": True, "requests_timeout": 5.0, "token": {"a": "b"},
    }  # fmt: skip
    assert gcsfs_options({"requester_pays": "a-project"}, {"STORAGE_EMULATOR_HOST": "localhost:1"}) == {
        "requester_pays": "a-project", "endpoint_url": "http://localhost:1",
    }  # fmt: skip
    with pytest.raises(InputError) as refused:
        adlfs_options({"anon": "perhaps", "read_timeout": -1, "account_name": 3, "sas": "x"}, {}, None)
    assert refused.value.problems == (
        "'anon' is not true or false",
        "'read_timeout' is not a number of seconds",
        "'account_name' is not a string",
        "'sas' is unknown",
    )
    variables = {
        "AZURE_STORAGE_ACCOUNT_NAME": "acc",
        "AZURE_STORAGE_ACCOUNT_KEY": "a2V5",
        "AZURE_STORAGE_TENANT_ID": "",
    }
    assert adlfs_options({}, variables, None) == {"account_name": "acc", "account_key": "a2V5"}
    assert adlfs_options({"sas_token": "x"}, variables, None) == {"sas_token": "x", "account_name": "acc"}
    assert adlfs_options({"AZURE_STORAGE_ACCOUNT_KEY": "a2V5"}, {}, "acc.dfs.core.windows.net") == {
        "account_key": "a2V5", "account_name": "acc", "account_host": "acc.blob.core.windows.net",
    }  # fmt: skip
