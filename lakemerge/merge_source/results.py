"""The results and reports of a merge source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

from lakemerge.results.findings import Finding
from mergers.wording import printable

__all__ = [
    "ClusterLink",
    "ColumnOrigin",
    "EntityExplanation",
    "EntityFinding",
    "IdChanges",
    "LeftOutValue",
    "Override",
    "Pending",
    "Report",
    "RunResult",
    "SourceCheck",
    "WideValue",
]


_LISTED = 100
"""How many ids of each kind a text lists."""
_NAMED = 5
"""How many values that are left out a text names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutValue:
    """A value that joins nobody, since it would make more entities one than ``max_merged`` allows."""

    rule: str
    """The expressions of its class."""
    value: str
    count: int
    """How many entities hold it at least."""
    chain: bool
    """Whether it was left out because of a chain of values, and not because of its own holders alone."""

    def __str__(self) -> str:
        why = ", in a chain" if self.chain else ""
        return printable(f"{self.value} of {self.rule} ({self.count:,} entities{why})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """What a row of the table of overrides says."""

    key: str
    verdict: str
    left: tuple[str, str]
    """Dataset and id."""
    right: tuple[str, str]
    who: str | None = None
    at: str | None = None
    why: str | None = None

    def __str__(self) -> str:
        pair = " and ".join(f"{dataset} {name!r}" for dataset, name in (self.left, self.right))
        more = "".join(f", {word} {value}" for word, value in (("by", self.who), ("at", self.at)) if value is not None)
        told = f"override {self.key!r} ({pair} are {self.verdict}{more})"
        return printable(told if self.why is None else f"{told}: {self.why}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityFinding:
    """What an override or a limit did that somebody should know of."""

    kind: str
    """``cut``: a link that an override cut; ``conflict``: a ``same`` that a ``different`` or a limit cut;
    ``more_than_one``: a link that would have given an entity two rows of a dataset; ``unusable``: an override that
    counts for nothing; ``waiting``: an override of a row that is not there."""
    problem: str
    members: tuple[tuple[str, str], ...] = ()
    """Dataset and id of the rows that stay apart, or that are not there."""
    rule: str | None = None
    """The expressions of the link that was cut."""
    value: str | None = None
    override: Override | None = None
    """The override that cut the link, or that counts for nothing."""

    def __str__(self) -> str:
        return printable(f"{self.kind}: {self.problem}")


@dataclass(frozen=True, slots=True, kw_only=True)
class IdChanges:
    """What a run would do to the ids of the output."""

    appear: tuple[str, ...] = ()
    """New ids."""
    join: Mapping[str, str] = field(default_factory=dict)
    """Id that would be retired -> the id that would have most of its rows."""
    split: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Id -> the ids that would have its rows, if these are several."""
    go: tuple[str, ...] = ()
    """Ids that would be deleted, be retired without a successor, or be taken out of the output."""

    def __bool__(self) -> bool:
        return bool(self.appear or self.join or self.split or self.go)

    def __str__(self) -> str:
        """Up to 100 of each kind."""
        join, split = (islice(told.items(), _LISTED) for told in (self.join, self.split))
        kinds = [
            ("appear", [f"  {name} would appear" for name in self.appear[:_LISTED]], len(self.appear)),
            ("join", [f"  {name} would join {heir}" for name, heir in join], len(self.join)),
            (
                "be split",
                [f"  {name} would be split into {', '.join(heirs)}" for name, heirs in split],
                len(self.split),
            ),
            ("go", [f"  {name} would go" for name in self.go[:_LISTED]], len(self.go)),
        ]
        lines = []
        for kind, told, count in kinds:
            lines += told
            if count > _LISTED:
                lines.append(f"  and {count - _LISTED:,} more would {kind}")
        return "\n".join(map(printable, lines))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a run did or, as a dry run, would do."""

    emitted: int
    """How many entities were written to the output: new and changed entities, and retired ids."""
    replaced: int
    """How many retired ids have entities that live on under another id."""
    deleted: int
    """How many entities were deleted, including retired ids whose entities do not live on."""
    clusters: int
    """How many clusters were formed or combined anew, including those of one entity."""
    versions: Mapping[str, int | None]
    """Dataset -> the version up to which it is taken up; ``None`` if there is no table, or nothing is taken up yet."""
    populated: bool
    """False: a dataset that must be populated first is not, so nothing was done."""
    waits_for: tuple[str, ...]
    """The names of these datasets."""
    full: bool
    """Whether every entity was looked at."""
    dry_run: bool
    number: int
    """The run's number; the last run's if there was nothing to do."""
    seconds: float
    removed: int = 0
    """How many rows were taken out of the output, because ``deleted_retention`` has passed."""
    left_out: tuple[LeftOutValue, ...] = ()
    """The values that join nobody, since they would make too many entities one; at most 100, those with the most
    holders first."""
    left_out_count: int = 0
    """How many such values there are."""
    findings: tuple[EntityFinding, ...] = ()
    """What overrides and ``one_per_dataset`` did to the entities that the run looked at; at most 100."""
    findings_count: int = 0
    """How many such findings there are."""
    ids: IdChanges | None = None
    """What a dry run would do to ids; ``None`` for any other run."""

    def __str__(self) -> str:
        if not self.populated:
            return printable(
                f"nothing was done: {', '.join(self.waits_for)} must be filled first (see initial_datasets)"
            )
        did = "a run would emit" if self.dry_run else f"run {self.number} emitted"
        taken = ", ".join(f"{name} at version {version}" for name, version in self.versions.items())
        return printable(
            f"{did} {self.emitted:,} entities ({self.replaced:,} replaced, {self.deleted:,} deleted) of "
            f"{self.clusters:,} clusters, {'everything' if self.full else 'what changed'} looked at, in "
            f"{self.seconds:.2f} s; {taken}{self._more()}"
        ) + (f"\n{self.ids}" if self.ids else "")

    def _more(self) -> str:
        removed = f"; {self.removed:,} rows forgotten" if self.removed else ""
        if self.findings_count:
            removed += f"; {self.findings_count:,} findings"
        if not self.left_out_count:
            return removed
        named = ", ".join(map(str, self.left_out[:_NAMED]))
        rest = self.left_out_count - min(_NAMED, len(self.left_out))
        return f"{removed}; left out of matching: {named}{f' and {rest:,} more' if rest else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """What the next run would take up."""

    datasets: Mapping[str, tuple[int | None, int | None]]
    """Dataset with newer versions -> the version taken up, and the latest version. A dataset whose table was made anew
    is there, too; its versions may be equal."""
    unpublished: bool
    """Whether the last run was cut short before it wrote to the output; the next run completes it."""
    forgotten: bool = False
    """Whether ``deleted_retention`` has passed for something in the output."""

    def __bool__(self) -> bool:
        return bool(self.datasets) or self.unpublished or self.forgotten


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLink:
    """A value that joins members."""

    rule: str
    """The expressions that give the value."""
    value: str
    members: tuple[tuple[str, str], ...]
    """Dataset and id."""

    def __str__(self) -> str:
        held = ", ".join(f"{dataset} {entity!r}" for dataset, entity in self.members)
        return printable(f"{self.rule}: {self.value} holds {held}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnOrigin:
    """Which row gave the value of a column that has a rule of survivorship."""

    column: str
    rule: str
    value: str | None
    """As text; ``None`` if no row has a value."""
    members: tuple[tuple[str, str], ...]
    """Dataset and id of the row that won; of all rows with a value where the value is made of several."""
    why: str

    def __str__(self) -> str:
        rows = ", ".join(f"{dataset} {entity!r}" for dataset, entity in self.members) or "no row"
        return printable(f"{self.column}: {self.value} from {rows} ({self.rule}: {self.why})")


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityExplanation:
    """Why an entity of the output is what it is."""

    id: str
    deleted: bool
    replaced: bool
    """Whether the id is retired, and its entities live on under other ids."""
    members: tuple[tuple[str, str], ...]
    """Dataset and id, in order; empty for a retired id."""
    links: tuple[ClusterLink, ...]
    """The values that join the members; those with the most holders come first."""
    findings: tuple[EntityFinding, ...] = ()
    """The links of the members that were cut."""
    columns: tuple[ColumnOrigin, ...] = ()
    """Which rows gave the values of columns that have a rule of survivorship."""

    def __str__(self) -> str:
        state = "no longer applies" if not self.members else "is deleted" if self.deleted else "is merged of"
        lines = [f"{self.id} {state}", *(f"  {dataset} {entity!r}" for dataset, entity in self.members)]
        lines += [f"  by {link}" for link in self.links]
        return "\n".join(map(printable, [*lines, *(f"  {one}" for one in (*self.findings, *self.columns))]))


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCheck:
    """What a check of a source looked at, and what is wrong."""

    entities: int
    clusters: int
    seconds: float
    findings: tuple[Finding, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.findings

    def __str__(self) -> str:
        head = f"{self.entities:,} entities in {self.clusters:,} clusters in {self.seconds:.1f} s"
        return "\n".join([f"{head}: {'nothing is wrong' if self.ok else 'wrong'}", *map(str, self.findings)])


@dataclass(frozen=True, slots=True, kw_only=True)
class WideValue:
    """A value that many entities hold."""

    value: str
    holders: Mapping[str, int]
    """Expression -> how many entities hold the value through it."""
    active: bool
    """Whether it joins entities, because two expressions of one class have it."""

    @property
    def count(self) -> int:
        return sum(self.holders.values())

    def __str__(self) -> str:
        through = ", ".join(f"{count:,} by {expression}" for expression, count in self.holders.items())
        return printable(f"{self.value}: {through}{', merged' if self.active else ''}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A source at a glance."""

    entities: Mapping[str, int]
    """Dataset -> how many entities it has, including deleted ones."""
    deleted: int
    clusters: int
    """How many clusters of live entities there are, including those of one."""
    merged: int
    """How many clusters have more than one entity."""
    largest: tuple[tuple[str, int], ...]
    """The clusters with the most members: output id and count."""
    widest: tuple[WideValue, ...]
    """The values that the most entities hold."""
    left_out: tuple[LeftOutValue, ...] = ()
    """The values that join nobody, since they would make too many entities one; as many as ``top`` says."""

    def __str__(self) -> str:
        held = ", ".join(f"{name} {count:,}" for name, count in self.entities.items())
        lines = [
            f"entities: {held}; {self.deleted:,} of them deleted",
            f"clusters: {self.clusters:,}, {self.merged:,} of more than one entity",
            *(f"  {count:,} entities: {name}" for name, count in self.largest),
            "values:",
            *(f"  {wide}" for wide in self.widest),
            *(["left out of matching:"] if self.left_out else []),
            *(f"  {value}" for value in self.left_out),
        ]
        return "\n".join(map(printable, lines))
