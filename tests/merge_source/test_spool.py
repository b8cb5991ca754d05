"""A spool gives back what it was given, part by part, whichever thread gave it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from lakemerge.merge_source.spool import Spool


def test_parts_come_back_in_order() -> None:
    with Spool() as spool:
        for number in range(30):
            spool.add(number % 3, pa.table({"n": [number], "t": [f"row {number}"]}))
            if number == 10:  # reading and adding may take turns
                assert [table["n"][0].as_py() for table in spool.tables(1)] == [1, 4, 7, 10]
        assert spool.rows == 30
        assert [table["n"][0].as_py() for table in spool.tables(2)] == list(range(2, 30, 3))
        assert list(spool.tables(7)) == []


def test_tables_outlive_the_spool() -> None:
    with Spool() as spool:
        spool.add(0, pa.table({"t": ["kept"]}))
        [table] = spool.tables(0)
    assert table.to_pylist() == [{"t": "kept"}]


def test_threads_add_to_parts_of_their_own() -> None:
    with Spool() as spool:

        def fill(part: int) -> None:
            for _ in range(50):
                spool.add(part, pa.table({"n": [part] * 50}))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(fill, range(8)))
        assert spool.rows == 8 * 50 * 50
        for part in range(8):
            assert pa.concat_tables(spool.tables(part))["n"].to_pylist() == [part] * 2500
