"""Where an Arrow expression can hold. Arrow's simplifier tells that; nothing else tells what is in an expression."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["can_hold"]


def can_hold(expression: pc.Expression, schema: pa.Schema, guarantees: Sequence[pc.Expression]) -> frozenset[int]:
    """The places of the guarantees under which a row may match. Arrow keeps a fragment of a dataset unless its
    partition expression contradicts the filter. It takes some 100 microseconds for each.

    :param schema: the types of the columns that the expressions read.
    """
    import pyarrow.dataset as ds  # loads pandas where that is installed
    from pyarrow import fs

    kind, store = ds.ParquetFileFormat(), fs.LocalFileSystem()
    fragments = [
        kind.make_fragment(str(place), store, partition_expression=guarantee)
        for place, guarantee in enumerate(guarantees)
    ]
    dataset = ds.FileSystemDataset(fragments, schema, kind, store)
    try:
        return frozenset(int(fragment.path) for fragment in dataset.get_fragments(filter=expression))
    except pa.ArrowException:
        # The simplifier computes with bounds, which may overflow where no row does. It also compares bounds with the
        # values of ``isin``, which may be of another type that rows are cast to.
        return frozenset(range(len(guarantees)))
