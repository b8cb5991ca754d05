"""The store with faults: without any it is a store; with one, exactly the call that was chosen fails."""

from __future__ import annotations

import errno
import pickle
from pathlib import Path

import pytest

from lakemerge.storage import LocalStore, Put, Store
from lakemerge.testing.faults import Call, Fail, Fault, FaultStore, Kill
from lakemerge.testing.store_suite import StoreSuite


class TestFaultStore(StoreSuite):
    """Without faults nothing changes."""

    race_processes = 2
    race_paths = 3

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return FaultStore(LocalStore(tmp_path))


def test_faults_come_before_or_after_the_effect(tmp_path: Path) -> None:
    inner = LocalStore(tmp_path)
    gone = Fail(ConnectionError("gone"))
    store = FaultStore(
        inner,
        Fault(action=gone, method="put", at=2),
        Fault(action=gone, method="put_if_absent", path="c", after=True),
        Fault(action=gone, method="delete", lasting=True, at=2),
    )
    store.put("a", b"1")
    with pytest.raises(ConnectionError, match="gone"):
        store.put("b", b"2")
    store.put("b", b"3")
    assert store.put_if_absent("x", b"4") is Put.CREATED
    with pytest.raises(ConnectionError):
        store.put_if_absent("c", b"5")
    assert {file.path: inner.get(file.path) for file in inner.list("")} == {"a": b"1", "b": b"3", "x": b"4", "c": b"5"}
    store.delete(["x"])
    for _ in range(3):
        with pytest.raises(ConnectionError):
            store.delete(["a"])
    assert store.calls[:3] == (Call("put", "a"), Call("put", "b"), Call("put", "b"))
    assert store.calls[-1] == Call("delete", "a")


@pytest.mark.parametrize(
    ("method", "after", "there"), [("open_output", False, False), ("publish", False, False), ("publish", True, True)]
)
def test_a_file_is_published_or_not(method: str, after: bool, there: bool, tmp_path: Path) -> None:
    store = FaultStore(LocalStore(tmp_path), Fault(action=Fail(OSError("no")), method=method, after=after))
    with pytest.raises(OSError, match="no"), store.open_output("f") as output:
        output.write(b"x")
    assert [file.path for file in LocalStore(tmp_path).list("")] == (["f"] if there else [])


def test_what_a_failed_writer_writes_later_goes_nowhere(tmp_path: Path) -> None:
    """The garbage collector may end a failed writer at any moment. Its writes must not count as calls."""
    store = FaultStore(LocalStore(tmp_path), Fault(action=Fail(OSError("no")), method="write"))
    with pytest.raises(OSError, match="no"), store.open_output("f") as output:
        output.write(b"1")
    calls = store.calls
    assert [call.method for call in calls] == ["open_output", "write"]
    output.write(b"2")
    assert store.calls == calls
    assert [*store.list("")] == []


def test_a_call_that_fails_by_itself_counts_too(tmp_path: Path) -> None:
    seen: list[Call] = []
    store = FaultStore(LocalStore(tmp_path), Fault(action=seen.append, method="get", after=True))
    with pytest.raises(FileNotFoundError):
        store.get("missing")
    assert seen == [Call("get", "missing")]
    slow = Fail(TimeoutError(errno.ETIMEDOUT, "slow"))
    hidden = FaultStore(LocalStore(tmp_path), Fault(action=slow, method="get", after=True))
    with pytest.raises(TimeoutError):
        hidden.get("missing")


def test_a_pickle_counts_for_itself(tmp_path: Path) -> None:
    store = FaultStore(LocalStore(tmp_path), Fault(action=Kill(), method="stat", at=2))
    assert store.stat("a") is None
    other = pickle.loads(pickle.dumps(store))
    assert other.calls == ()
    assert other.stat("a") is None
