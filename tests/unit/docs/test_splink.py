"""The recipe with Splink: its part without Splink always runs, the whole of it where Splink is installed.

Splink is the user's own tool. No part of LakeMerge needs it, so the test environment does not have it. The whole recipe
was run on 2026-11-28 with Splink 5.0.0 and DuckDB 1.5.5, and passed. To run it: ``pip install splink==5.0.0``.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.guides import blocks, count_of_blocks, run

GUIDE = "splink.md"


def test_pairs_that_look_like_those_of_splink_join_rows(tmp_path: Path) -> None:
    code = blocks(GUIDE)
    assert len(code) == count_of_blocks(GUIDE)
    assert [place for place, block in enumerate(code) if "splink import" in block] == [1]
    pairs = pa.table(
        {
            "source_dataset_l": ["crm", "crm"],
            "id_l": ["c1", "c2"],
            "source_dataset_r": ["shop", "shop"],
            "id_r": ["s1", "s2"],
            "match_probability": [0.99, 0.98],
        }
    )
    names = run(GUIDE, code[:1], path=str(tmp_path))
    run(GUIDE, code[2:], **{**names, "pairs": pairs})


def test_the_whole_recipe(tmp_path: Path) -> None:
    pytest.importorskip("splink", reason="Splink is not in the test environment; last passed on 2026-11-28")
    run(GUIDE, blocks(GUIDE), path=str(tmp_path))
