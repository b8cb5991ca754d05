"""Operating-system processes on one table on S3, which they reach by the AWS variables alone."""

from __future__ import annotations

import pytest

from tests.property.test_concurrency import check_many_processes
from tests.property.test_transaction_processes import check_counters
from tests.s3.servers import Endpoint


@pytest.mark.long
@pytest.mark.serial
def test_many_processes_on_one_table(endpoint: Endpoint, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in endpoint.options.items():
        monkeypatch.setenv(name, str(value))
    check_many_processes(f"{place}/table", writers=2)


@pytest.mark.long
@pytest.mark.serial
def test_transactions_count_in_one_row(endpoint: Endpoint, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in endpoint.options.items():
        monkeypatch.setenv(name, str(value))
    # A server in Python answers a request in some milliseconds: few counts race as long there as many on a disk.
    check_counters(f"{place}/table", counts=4, long=1)
