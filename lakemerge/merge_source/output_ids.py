"""Decides which id clusters get in the output, which of them show there, and which ids are retired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.errors import IdCollisionError, MaxMergedError, MaxRetiredError
from lakemerge.merge_source.clusters import Clusters, Link, links_of
from lakemerge.merge_source.combine import members_of
from lakemerge.merge_source.config import MergeConfig
from lakemerge.merge_source.content_hash import hash_values
from lakemerge.merge_source.entity_states import Known, ints, strings
from lakemerge.merge_source.ids import key_texts
from lakemerge.merge_source.nested_arrays import Bools, Ints, contiguous, lengths_of, run_starts, spread
from lakemerge.merge_source.rule_values import Held
from lakemerge.merge_source.rules import Rules

__all__ = [
    "Bystanders",
    "Left",
    "OldClusters",
    "check_ids",
    "check_retired",
    "check_sizes",
    "collision",
    "retired_ids",
    "shown_value",
    "too_many",
    "with_first_ids",
]


@dataclass(frozen=True, slots=True)
class Bystanders:
    """Live entities that share an id with an entity that the run looks at, but are not looked at themselves."""

    datasets: Ints
    ids: pa.Array
    leads: Bools
    """Whether each is the first member of its cluster, which then has its id."""

    @staticmethod
    def none() -> Bystanders:
        return Bystanders(np.empty(0, np.int64), pa.array([], pa.string()), np.empty(0, np.bool_))


@dataclass(frozen=True, slots=True)
class OldClusters:
    """Clusters of the output, as the state has them."""

    records: pa.Table
    """``output_id``, ``hash``, ``updated``, ``run``, ``singles``, ``deleted``, ``split_into``, and ``written``: a hash
    of the members as they were written."""
    offsets: Ints
    datasets: Ints
    """The datasets of the members; -1 for a dataset that was removed."""
    ids: pa.Array
    strange: Bools | None = None
    """Which of the clusters the state knows nothing of, though it can be trusted; ``None``: none."""

    def __len__(self) -> int:
        return self.records.num_rows

    @property
    def output_ids(self) -> pa.Array:
        return strings(self.records, "output_id")

    @property
    def live(self) -> Bools:
        """Which of the clusters were no deleted entities."""
        return ~strings(self.records, "deleted").fill_null(False).to_numpy(zero_copy_only=False)

    @property
    def unknown(self) -> Bools:
        """Which of the clusters the state knows nothing of."""
        return np.zeros(len(self), dtype=np.bool_) if self.strange is None else self.strange

    @staticmethod
    def of(old: pa.Table) -> OldClusters:
        """The clusters in records of entities."""
        own = key_texts(ints(old, "dataset"), strings(old, "id"))
        lead = pc.equal(key_texts(ints(old, "first_dataset"), strings(old, "first_id")), own)
        shown = old.filter(pc.and_(lead, strings(old, "output_id").is_valid()))
        members = contiguous(shown.column("members"))
        alone = ~members.is_valid().to_numpy(zero_copy_only=False)
        sizes = np.where(alone, 1, lengths_of(members))
        group, place = spread(sizes)
        starts = np.cumsum(lengths_of(members)) - lengths_of(members)
        listed = pc.list_flatten(members)
        # A cluster of one lists no members: the entity is its only member.
        pick = np.where(alone[group], len(listed) + group, starts[group] + place)
        datasets = np.concatenate([listed.field("dataset").to_numpy().astype(np.int64), ints(shown, "dataset")])
        ids = contiguous(pa.chunked_array([listed.field("id"), strings(shown, "id")], pa.string()))
        datasets, ids = datasets[pick], ids.take(pa.array(pick))
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])
        told = shown.select(["output_id", "hash", "updated", "run", "singles", "deleted", "split_into"])
        written = pa.array(hash_values(members_of(offsets, datasets, ids)).view(np.int64))
        return OldClusters(told.append_column("written", written), offsets, datasets, ids)

    def without(self, names: pa.ChunkedArray) -> OldClusters:
        """The clusters but those with certain ids."""
        keep = ~pc.is_in(self.output_ids, value_set=names).to_numpy(zero_copy_only=False)
        sizes = np.diff(self.offsets)
        inside = np.repeat(keep, sizes)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes[keep], dtype=np.int64)])
        members = self.datasets[inside], self.ids.filter(pa.array(inside))
        strange = None if self.strange is None else self.strange[keep]
        return OldClusters(self.records.filter(pa.array(keep)), offsets, *members, strange)

    def moved(self, offsets: Sequence[int]) -> OldClusters:
        """The clusters with the datasets' new offsets. ``offsets`` has for each old offset the new one, or -1."""
        now = np.array([*offsets, -1], dtype=np.int64)
        return replace(self, datasets=now[np.minimum(self.datasets, len(offsets))])


def check_sizes(rules: Rules, aliases: Sequence[str], known: Known, clusters: Clusters, limit: int) -> None:
    """Raise :class:`MaxMergedError` if a cluster has more members than allowed."""
    sizes = np.diff(clusters.offsets)
    if not len(sizes) or int(sizes.max()) <= limit:
        return
    widest = clusters.range(int(sizes.argmax()), int(sizes.argmax()) + 1)
    inside = np.isin(known.held.rows, widest.members)
    held = Held(known.held.rows[inside], known.held.expressions[inside], known.held.values.filter(pa.array(inside)))
    link = links_of(rules, held)[0]
    raise too_many(rules, aliases, link, len(widest.datasets), limit)


def too_many(rules: Rules, aliases: Sequence[str], link: Link, count: int | None, limit: int) -> MaxMergedError:
    """The error for too many members.

    :param count: how many entities there are; ``None`` if not all were read.
    """
    rule = " = ".join(dict.fromkeys(rules.shown(number, aliases) for number in link.expressions))
    many = f"{count}" if count is not None else f"more than {limit}"
    return MaxMergedError(
        f"{many} entities would be merged into one, and max_merged is {limit}; the value {shown_value(link.value)} of "
        f"the rule {rule} holds most of them together. Nothing was changed. Leave such values out of the rule, as with "
        "nullif, raise max_merged, or set oversize to 'leave_out'",
        rule=rule,
        value=shown_value(link.value),
        count=limit + 1 if count is None else count,
        limit=limit,
    )


def shown_value(text: str) -> str:
    """A value as people write it: strings in quotes."""
    return repr(text[1:]) if text[0] == "s" else text[1:]


def with_first_ids(known: Known, clusters: Clusters, bystanders: Bystanders) -> Clusters:
    """Clusters with the ids of their first members. A deleted entity does not show if a live entity has its id, or a
    deleted entity of an earlier dataset."""
    firsts = clusters.offsets[:-1]
    datasets, ids = clusters.datasets[firsts], clusters.ids.take(pa.array(firsts))
    live = contiguous(pa.chunked_array([known.ids.filter(pa.array(~known.deleted)), bystanders.ids], pa.string()))
    taken = pc.is_in(ids, value_set=live).to_numpy(zero_copy_only=False)
    dead = np.flatnonzero(clusters.deleted)
    codes = ids.take(pa.array(dead)).dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
    order = np.lexsort((datasets[dead], codes))
    earliest = np.zeros(len(clusters), dtype=np.bool_)
    earliest[dead[order[run_starts(codes[order])]]] = True
    hidden = clusters.deleted & (taken | ~earliest)
    return clusters.named(pc.if_else(pa.array(hidden), pa.scalar(None, pa.string()), ids))


def check_ids(
    rules: Rules, names: Sequence[str], known: Known, clusters: Clusters, bystanders: Bystanders, *, first: bool
) -> None:
    """Raise :class:`IdCollisionError` if two entities would have one id."""
    if first:
        _check_datasets(rules, names, known, bystanders)
    elif not known.has_bars:
        return
    shown = clusters.output_ids.drop_null()
    counts = pc.value_counts(shown)
    twice = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    if first:
        leading = bystanders.ids.filter(pa.array(bystanders.leads))
        twice = pa.concat_arrays([twice, shown.filter(pc.is_in(shown, value_set=leading))])
    if len(twice):
        raise collision(twice[0].as_py())


def collision(output_id: str) -> IdCollisionError:
    return IdCollisionError(
        f"two merged entities would have the id {output_id!r}. Nothing was changed. Give entities ids that differ, or "
        "use identity 'stable'",
        id=output_id,
    )


def _check_datasets(rules: Rules, names: Sequence[str], known: Known, bystanders: Bystanders) -> None:
    live = ~known.deleted
    ids = contiguous(pa.chunked_array([known.ids.filter(pa.array(live)), bystanders.ids], pa.string()))
    encoded = ids.dictionary_encode()
    there = np.zeros((len(encoded.dictionary), len(names)), dtype=np.bool_)
    datasets = np.concatenate([known.datasets[live], bystanders.datasets])
    there[encoded.indices.to_numpy(zero_copy_only=False), datasets] = True
    shared = np.flatnonzero(there.sum(axis=1) > 1)
    patterns, firsts = np.unique(there[shared], axis=0, return_index=True)
    for pattern, place in zip(patterns, firsts.tolist(), strict=True):
        offsets = np.flatnonzero(pattern).tolist()
        if not rules.covers_ids(offsets):
            example = encoded.dictionary[int(shared[place])].as_py()
            where = ", ".join(repr(names[offset]) for offset in offsets)
            raise IdCollisionError(
                f"the id {example!r} is in the datasets {where}, and no rule compares the ids of all of them. With "
                "identity 'first' the output could not tell them apart: add a rule on _id or $ids, or use composite "
                "ids. Nothing was changed",
                id=example,
                datasets=tuple(names[offset] for offset in offsets),
            )


@dataclass(frozen=True, slots=True)
class Retired:
    """What becomes of the output ids that no clusters have any more."""

    ids: pa.Array
    """The ids that are retired, in order."""
    replaced: Bools
    """Whether a member of each is output under another id, or has a successor in its own table."""
    removed: pa.Array
    """The ids of forgotten entities, whose rows are taken out of the output."""


@dataclass(frozen=True, slots=True)
class Left:
    """Entities that are none any more, as :func:`lakemerge.merge_source.ids.key_texts`."""

    replaced: pa.Array
    """They have a successor in their own tables."""
    forgotten: pa.Array
    """Their rows went long ago."""

    @staticmethod
    def nobody() -> Left:
        return Left(pa.array([], pa.string()), pa.array([], pa.string()))


def retired_ids(known: Known, clusters: Clusters, old: OldClusters, left: Left) -> Retired:
    """What becomes of the output ids that no clusters have any more."""
    gone = ~pc.is_in(old.output_ids, value_set=clusters.output_ids).to_numpy(zero_copy_only=False)
    cluster_of = np.full(len(known) + 1, -1, dtype=np.int64)
    cluster_of[clusters.members] = clusters.of_members
    shows = np.append(clusters.output_ids.is_valid().to_numpy(zero_copy_only=False), False)
    member = known.places_of(old.datasets, old.ids)
    lives = shows[cluster_of[member]] & (member >= 0)
    group, _ = spread(np.diff(old.offsets))
    texts = key_texts(old.datasets, old.ids)
    if len(left.replaced):
        lives |= pc.is_in(texts, value_set=left.replaced).to_numpy(zero_copy_only=False)
    replaced = np.bincount(group, weights=lives, minlength=len(old)) > 0
    removed = np.zeros(len(old), dtype=np.bool_)
    if len(left.forgotten):
        forgotten = pc.is_in(texts, value_set=left.forgotten).to_numpy(zero_copy_only=False)
        removed = gone & (np.bincount(group, weights=forgotten, minlength=len(old)) == np.diff(old.offsets))
        removed &= np.diff(old.offsets) > 0
    places = np.flatnonzero(gone & ~removed)
    ids = old.output_ids.take(pa.array(places))
    order = pc.sort_indices(ids).to_numpy(zero_copy_only=False)
    return Retired(ids.take(pa.array(order)), replaced[places][order], old.output_ids.filter(pa.array(removed)))


def check_retired(
    config: MergeConfig, known: Known, clusters: Clusters, old: OldClusters, left: Left, *, live: int
) -> None:
    """Raise :class:`MaxRetiredError` if too many of the output's entities would be deleted, or be retired without a
    successor. Those whose datasets all left the configuration do not count: to leave one out takes a full run, too.

    :param live: how many entities of the output are not deleted.
    """
    limit = config.max_retired
    alive = np.append(~known.deleted, False)
    member = known.places_of(old.datasets, old.ids)
    lives = alive[member] & (member >= 0)
    if len(left.replaced):
        texts = key_texts(old.datasets, old.ids)
        lives |= pc.is_in(texts, value_set=left.replaced).to_numpy(zero_copy_only=False)
    group, _ = spread(np.diff(old.offsets))
    survives = np.bincount(group, weights=lives, minlength=len(old)) > 0
    configured = np.bincount(group, weights=old.datasets >= 0, minlength=len(old)) > 0
    lost = old.live & ~survives & configured
    count = int(lost.sum())
    if count <= 1 or count <= limit * live:
        return
    members = np.flatnonzero(lost[group] & (old.datasets >= 0))
    by_dataset = np.bincount(old.datasets[members], minlength=len(config.names))
    most = int(by_dataset.argmax())
    example = old.ids[int(members[old.datasets[members] == most][0])].as_py()
    raise MaxRetiredError(
        f"{count} of {live} entities of the output would be deleted or retired, and max_retired allows "
        f"{limit:.0%} of them; {int(by_dataset[most])} rows of dataset {config.names[most]!r} are gone, such as "
        f"{example!r}. Nothing was changed. Check that the dataset's table is the right one and is complete; if the "
        "rows are meant to be gone, raise max_retired for this run",
        count=count,
        entities=live,
        limit=limit,
        dataset=config.names[most],
    )
