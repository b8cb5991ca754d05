"""The options that Hadoop's S3A gets for a store on S3, by the names in its manual (hadoop-aws). There is no server."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from lakemerge.storage import S3Store, open_store
from lakemerge.storage.s3 import S3A

IMPLEMENTATION = "org.apache.hadoop.fs.s3a.S3AFileSystem"
SIMPLE = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
TEMPORARY = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
ANONYMOUS = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
PAIR = {"key": "k", "secret": "s"}
PAIR_THERE = {"access.key": "k", "secret.key": "s", "aws.credentials.provider": SIMPLE}


def s3a(options: Mapping[str, object]) -> S3A:
    store = open_store("s3://some.bucket/t", options)
    assert isinstance(store, S3Store)
    assert store.spark_url("file") == f"{store.s3a.scheme}://some.bucket/t/file"
    return store.s3a


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (PAIR, PAIR_THERE),
        ({"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}, PAIR_THERE),
        ({"username": "k", "password": "s"}, PAIR_THERE),
        ({"client_kwargs": {"aws_access_key_id": "k", "aws_secret_access_key": "s"}}, PAIR_THERE),
        (
            {**PAIR, "token": "t"},
            {**PAIR_THERE, "session.token": "t", "aws.credentials.provider": TEMPORARY},
        ),
        ({"anon": "true"}, {"aws.credentials.provider": ANONYMOUS}),
        ({"AWS_REGION": "eu-north-1"}, {"endpoint.region": "eu-north-1"}),
        (
            {"endpoint_url": "http://here:1"},
            {"endpoint": "http://here:1", "endpoint.region": "us-east-1", "path.style.access": "true"},
        ),
        (
            {"AWS_ENDPOINT_URL": "http://here:1", "addressing_style": "virtual", "AWS_REGION": "r"},
            {"endpoint": "http://here:1", "endpoint.region": "r", "path.style.access": "false"},
        ),
        ({"config_kwargs": {"s3": {"addressing_style": "path"}}}, {"path.style.access": "true"}),
        ({"requester_pays": True, "use_ssl": "false"}, {
            "requester.pays.enabled": "true", "connection.ssl.enabled": "false",
        }),
    ],
)  # fmt: skip
def test_each_option_by_the_name_that_it_has_there(given: dict[str, object], expected: dict[str, str]) -> None:
    found = s3a(given)
    of_bucket = {f"fs.s3a.bucket.some.bucket.{name}": value for name, value in expected.items()}
    assert found.options == {f"fs.{found.scheme}.impl": IMPLEMENTATION, **of_bucket}
    assert found.unknown == ()


@pytest.mark.parametrize(
    ("given", "unknown"),
    [
        ({"profile": "p"}, ("profile",)),
        ({"key": "k"}, ("key",)),
        ({"client_kwargs": {"verify": False}}, ("verify",)),
        ({"config_kwargs": {"proxies": {"http": "x"}, "signature_version": "s3"}}, ("proxies", "signature_version")),
        ({"config_kwargs": {"s3": {"use_accelerate_endpoint": True}}}, ("use_accelerate_endpoint",)),
        ({"s3_additional_kwargs": {"SSECustomerKey": "x"}}, ("s3_additional_kwargs",)),
        ({"config_kwargs": {"retries": {"mode": "standard"}, "read_timeout": 5}, "cache_regions": True}, ()),
        ({"anon": "false", "client_kwargs": {}, "s3_additional_kwargs": {}}, ()),
    ],
)
def test_options_that_it_has_none_for_are_named(given: dict[str, object], unknown: tuple[str, ...]) -> None:
    assert s3a(given).unknown == unknown


def test_a_store_without_options_is_the_sessions_own() -> None:
    own = S3A("some.bucket", "s3a", {}, ())
    assert s3a({}) == s3a({"anon": False, "cache_regions": "true"}) == own


def test_a_scheme_for_each_set_of_options() -> None:
    """A URL of Spark's must have a scheme of letters, digits and these three signs, which starts with a letter."""
    schemes = [
        s3a(options).scheme
        for options in (PAIR, {**PAIR, "secret": "other"}, {**PAIR, "token": "t"}, {**PAIR, "AWS_REGION": "r"})
    ]
    assert len(set(schemes)) == 4
    assert s3a({"secret": "s", "AWS_ACCESS_KEY_ID": "k"}).scheme == schemes[0]
    assert all(scheme.replace("-", "").isalnum() and scheme.startswith("s3a-") for scheme in schemes)


@pytest.mark.parametrize("given", [{}, PAIR])
def test_the_client_that_tries_it_is_another_one(given: dict[str, object]) -> None:
    real, trying = s3a(given), s3a(given).trying
    assert trying.scheme == f"{real.scheme}-try"
    assert trying.options[f"fs.{trying.scheme}.impl"] == IMPLEMENTATION
    assert real.options.items() <= trying.options.items()
    assert trying.options["fs.s3a.bucket.some.bucket.retry.limit"] == "1"
    assert not [name for name in real.options if "retry" in name or "attempts" in name]


def test_secrets_do_not_show() -> None:
    assert "hunter2" not in repr(s3a({"key": "k", "secret": "hunter2"}))
