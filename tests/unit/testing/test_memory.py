"""The store in memory: the store suite, and copies of a whole bucket."""

from __future__ import annotations

import random
import uuid

import pytest

from lakemerge.storage.base import Put
from lakemerge.testing.memory import Bucket, MemoryStore
from lakemerge.testing.store_suite import StoreSuite


class TestMemoryStore(StoreSuite):
    race_in_threads = True

    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore(Bucket(uuid.uuid4().hex), "some/table")


def test_a_copy_of_a_bucket_goes_its_own_way() -> None:
    bucket = Bucket("copied")
    store = MemoryStore(bucket, "t")
    store.put("a", b"1")
    copy = MemoryStore(bucket.copy(), "t")
    assert (copy.get("a"), copy.stat("a")) == (b"1", store.stat("a"))
    assert copy.put_if_absent("b", b"2") is Put.CREATED
    copy.put("a", b"3")
    assert [file.path for file in store.list("")] == ["a"]
    assert store.get("a") == b"1"


def test_a_bucket_gets_older() -> None:
    bucket = Bucket("aged")
    store = MemoryStore(bucket, "t")
    store.put("a", b"1")
    before = store.stat("a")
    bucket.age(5000)
    after = store.stat("a")
    assert before is not None
    assert after is not None
    assert before.modified_ms - after.modified_ms == 5000
    assert store.delete_exact([after]) == ()


def test_listings_of_a_bucket_are_those_of_a_plain_set() -> None:
    draw, bucket, known = random.Random(1), Bucket("listed"), set[str]()
    names = ["a", "a/b", "a/é", "a/\U0001f600", "a/\uffff", "a0", "b/c", "b/d/e"]
    for _ in range(300):
        name = draw.choice(names)
        if draw.random() < 0.5:
            bucket.write(name, b"")
            known.add(name)
        else:
            bucket.remove(name)
            known.discard(name)
        prefix, after = draw.choice(["", "a", "a/", "b/", "c"]), draw.choice(["", *names])
        expected = [path for path in known if path.startswith(prefix) and path.encode() > after.encode()]
        assert bucket.paths(prefix, after=after) == sorted(expected, key=str.encode)
