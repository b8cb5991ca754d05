"""Which rows gave the values of columns that have a rule of survivorship, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.merge_source.clusters import Clusters
from lakemerge.merge_source.combine import DatasetRows, OutputShape, chosen, own_values
from lakemerge.merge_source.config import MergeConfig
from lakemerge.merge_source.entity_states import Fresh, assemble
from lakemerge.merge_source.inputs import Access, open_input
from lakemerge.merge_source.member_rows import Chunks, SoughtRows
from lakemerge.merge_source.results import ColumnOrigin
from lakemerge.merge_source.run import as_taken_up
from lakemerge.merge_source.state import State
from lakemerge.merge_source.survivorship import Column, Rule
from lakemerge.merge_source.types import Property
from lakemerge.merge_source.value_texts import plain_texts
from mergers.builtin.functions.equal import equality_codes

__all__ = ["column_origins"]


def column_origins(
    state: State, config: MergeConfig, access: Access, records: pa.Table, output_id: str
) -> tuple[ColumnOrigin, ...]:
    """The origins of one entity's columns that have a rule, in the order of the output.

    :param records: the state's records of its members.
    :raises lakemerge.VersionNotFoundError: a version that the last run took up cannot be read any more.
    """
    if not config.survivors or not records.num_rows:
        return ()
    opened = [open_input(place, one, access) for place, one in enumerate(config.inputs)]
    inputs = [as_taken_up(one, known) for one, known in zip(opened, state.meta.datasets, strict=True)]
    shape = OutputShape.of([one.shape for one in inputs], config)
    known = assemble(records, Fresh.together([]))
    count = len(known)
    offsets = np.array([0, count], dtype=np.int64)
    one = Clusters(
        offsets, np.arange(count), known.datasets, known.ids, known.deleted[:1], pa.array([output_id], pa.string())
    )
    ((_, clusters, parts),) = SoughtRows(inputs, known, one, Chunks(state)).batches()
    return tuple(_origins(config, shape, clusters, parts))


def _origins(
    config: MergeConfig, shape: OutputShape, clusters: Clusters, parts: Sequence[DatasetRows]
) -> Iterator[ColumnOrigin]:
    def members(places: Sequence[int]) -> tuple[tuple[str, str], ...]:
        return tuple((config.names[int(clusters.datasets[at])], clusters.ids[at].as_py()) for at in places)

    for one in shape.properties:
        rule = shape.survivors.get(one.name.lower())
        if rule is None:
            continue
        values, winners = chosen(clusters, parts, one, shape)
        own = own_values(parts, one)
        winner = int(winners[0])
        yield ColumnOrigin(
            column=one.name,
            rule=_shown(rule, config),
            value=plain_texts(values)[0].as_py(),
            members=members([winner] if winner >= 0 else own.places.tolist()),
            why=_why(rule, own, winner, shape, parts, config, clusters),
        )


def _shown(rule: Rule, config: MergeConfig) -> str:
    if isinstance(rule.argument, tuple):
        return f"priority {', '.join(config.names[offset] for offset in rule.argument)}"
    return str(rule)


def _why(
    rule: Rule,
    own: Column,
    winner: int,
    shape: OutputShape,
    parts: Sequence[DatasetRows],
    config: MergeConfig,
    clusters: Clusters,
) -> str:
    count = len(own.places)
    rows = f"{count} row{'' if count == 1 else 's'} with a value"
    if not count:
        return "no row has a value"
    value = own.values.filter(pa.array(own.places == winner))
    match rule.name:
        case "newest":
            return f"{_newest(rule, own, winner, shape.properties, parts)}, of {rows}"
        case "priority":
            return f"{config.names[int(clusters.datasets[winner])]} comes first of the datasets of {rows}"
        case "longest":
            is_list = pa.types.is_list(value.type)
            length = pc.list_value_length(value) if is_list else pc.utf8_length(plain_texts(value))
            return f"{length[0].as_py()} {'elements' if is_list else 'characters'}, the longest of {rows}"
        case "most_frequent":
            codes = equality_codes(own.values)
            same = int((codes == codes[own.places == winner][0]).sum())
            return f"{same} of {rows} have it"
        case "union":
            return f"all values of {rows}"
        case "expression":
            return f"folded over {rows}, in the order of members"
        case _:
            return f"the first of {rows}"


def _newest(rule: Rule, own: Column, winner: int, properties: Sequence[Property], parts: Sequence[DatasetRows]) -> str:
    name = str(rule.argument)
    by = next((one for one in properties if one.name.lower() == name.lower()), None)
    given = None if by is None else own_values(parts, by)
    if given is None or winner not in given.places:
        return f"no row has a value of {name}, and it is the first"
    text = plain_texts(given.values.filter(pa.array(given.places == winner)))[0].as_py()
    return f"{name} is {text}, the highest"
