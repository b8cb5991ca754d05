"""The values that are left out of matching, as the state remembers them.

A value is left out because its own holders are too many, which the index tells, or because it cuts a chain that would
make too many entities one. The second kind depends on the entities of the chain, all of which a run looks at.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.merge_source.clusters import LeftOut
from lakemerge.merge_source.config import MergeConfig
from lakemerge.merge_source.entity_states import Known, ints, strings
from lakemerge.merge_source.ids import key_texts
from lakemerge.merge_source.incremental_run import Sizes
from lakemerge.merge_source.nested_arrays import Bools, Ints, contiguous
from lakemerge.merge_source.output_ids import shown_value
from lakemerge.merge_source.results import LeftOutValue
from lakemerge.merge_source.rule_values import Held
from lakemerge.merge_source.rules import Rules
from lakemerge.merge_source.state import State, deletes, records

__all__ = [
    "all_left_out_records",
    "left_out_now",
    "left_out_of",
    "left_out_records",
    "new_ones",
    "remembered_of",
    "shown",
]


def left_out_of(state: State, config: MergeConfig, known: Known, sizes: Sizes) -> LeftOut:
    """The values of entities that too many others hold, too."""
    if config.oversize == "fail":
        return LeftOut.none()
    if not state.meta.left_out:
        return sizes.left_out
    before = remembered_of(state, config.rules, known.held)
    touched = _in(_keys(before), key_texts(sizes.classes, sizes.values))
    return LeftOut.together([sizes.left_out, _where(before, ~before.chains & ~touched)])


def remembered_of(state: State, rules: Rules, held: Held) -> LeftOut:
    """Which of the values that entities hold the state has as left out."""
    if not state.meta.left_out:
        return LeftOut.none()
    classes, values = _held_pairs(rules, held)
    return _as_left_out(state.left_out(classes, values))


def left_out_now(state: State) -> LeftOut:
    """All that is left out as of the last run."""
    return _as_left_out(state.all_left_out()) if state.meta.left_out else LeftOut.none()


def left_out_records(
    state: State, config: MergeConfig, known: Known, sizes: Sizes, now: LeftOut
) -> tuple[list[pa.Table], LeftOut]:
    """The records that change after a run over what changed, and all values that are left out then.

    :param now: what is left out of the values that the run looked at.
    """
    before = LeftOut.none()
    if state.meta.left_out:
        classes, values = _held_pairs(config.rules, known.held)
        asked_classes = np.concatenate([classes, sizes.classes])
        asked_values = contiguous(pa.chunked_array([values, sizes.values], pa.string()))
        once = _firsts(key_texts(asked_classes, asked_values))
        before = _as_left_out(state.left_out(asked_classes[once], asked_values.take(pa.array(once))))
    others = left_out_now(state)
    others = _where(others, ~_in(_keys(others), _keys(before)))
    return list(_differences(before, now)), LeftOut.together([others, now])


def all_left_out_records(state: State, now: LeftOut) -> Iterator[pa.Table]:
    """The records that change after a full run."""
    yield from _differences(_as_left_out(state.all_left_out()), now)


def shown(given: LeftOut, config: MergeConfig, top: int) -> tuple[LeftOutValue, ...]:
    """Those with the most holders."""
    order = np.argsort(-given.counts, kind="stable")[:top]
    values = given.values.take(pa.array(order)).to_pylist()
    return tuple(
        LeftOutValue(
            rule=" = ".join(
                dict.fromkeys(config.rules.shown(one, config.aliases) for one in config.rules.classes[number])
            ),
            value=shown_value(value),
            count=count,
            chain=chain,
        )
        for number, value, count, chain in zip(
            given.classes[order].tolist(),
            values,
            given.counts[order].tolist(),
            given.chains[order].tolist(),
            strict=True,
        )
    )


def new_ones(state: State, now: LeftOut) -> LeftOut:
    """Those that were not left out before."""
    return _where(now, ~_in(_keys(now), _keys(left_out_now(state))))


def _differences(before: LeftOut, now: LeftOut) -> Iterator[pa.Table]:
    stale = _where(before, ~_in(_keys(before), _keys(now)))
    if len(stale):
        yield deletes("o", stale.values, stale.classes, np.zeros_like(stale.classes))
    fresh = _where(now, ~_in(_told(now), _told(before)))
    if len(fresh):
        columns = {"count": pa.array(fresh.counts), "pages": pa.array(fresh.chains.astype(np.int32))}
        yield records("o", fresh.values, fresh.classes, np.zeros_like(fresh.classes), columns)


def _as_left_out(found: pa.Table) -> LeftOut:
    return LeftOut(ints(found, "a"), strings(found, "k"), ints(found, "count"), ints(found, "pages") == 1)


def _held_pairs(rules: Rules, held: Held) -> tuple[Ints, pa.Array]:
    """The classes and values that entities hold, each pair once."""
    classes, places = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    for number, group in enumerate(rules.classes):
        codes = np.unique(held.codes[np.isin(held.expressions, group)])
        classes.append(np.full(len(codes), number, dtype=np.int64))
        places.append(codes)
    return np.concatenate(classes), held.encoded.dictionary.take(pa.array(np.concatenate(places)))


def _keys(given: LeftOut) -> pa.Array:
    return key_texts(given.classes, given.values)


def _told(given: LeftOut) -> pa.Array:
    counts = key_texts(given.counts, pa.array(given.chains).cast(pa.string()))
    return pc.binary_join_element_wise(counts, _keys(given), "|")


def _in(texts: pa.Array, others: pa.Array) -> Bools:
    return pc.is_in(texts, value_set=others).to_numpy(zero_copy_only=False)


def _firsts(texts: pa.Array) -> Ints:
    codes = texts.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return np.unique(codes, return_index=True)[1].astype(np.int64)


def _where(given: LeftOut, keep: Bools) -> LeftOut:
    return LeftOut(given.classes[keep], given.values.filter(pa.array(keep)), given.counts[keep], given.chains[keep])
