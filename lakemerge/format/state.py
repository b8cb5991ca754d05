"""The permanent domain of a table: its epochs, its reserved ordinals, and the fence of vacuum.

Source: docs/table-format.md, section 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import orjson

from lakemerge.delta import DomainMetadata, Snapshot
from lakemerge.errors import TableDamagedError, UnsupportedFeatureError
from lakemerge.format.names import FORMAT_VERSION, STATE_DOMAIN
from lakemerge.format.values import INT32_LIMIT, whole_number

__all__ = ["State"]


@dataclass(frozen=True, slots=True)
class State:
    """The domain ``lakemerge.state``, which every version has."""

    merger_epoch: int = 0
    """Raised when the merger or its options change."""
    layout_epoch: int = 0
    """Raised when the bucket count changes."""
    schema_epoch: int = 0
    """Raised when the schema changes."""
    next_ordinal: int = 0
    """The first file ordinal (``_lm_file``) nobody has reserved."""
    fence_begin_version: int = 0
    """Transactions begun below this version cannot commit any more (set by vacuum)."""
    oldest_version: int = 0
    """Versions below this one cannot be read any more, except savepoints (set by vacuum)."""
    restore_epoch: int = 0
    """Raised when an earlier version is restored."""
    overwrite_epoch: int = 0
    """Raised by each overwrite. It never falls, so two versions with equal ones have none between them."""

    def domain(self) -> DomainMetadata:
        body = {
            "formatVersion": FORMAT_VERSION,
            "mergerEpoch": self.merger_epoch,
            "layoutEpoch": self.layout_epoch,
            "schemaEpoch": self.schema_epoch,
            "nextOrdinal": self.next_ordinal,
            "fenceBeginVersion": self.fence_begin_version,
            "oldestVersion": self.oldest_version,
            "restoreEpoch": self.restore_epoch,
            "overwriteEpoch": self.overwrite_epoch,
        }
        return DomainMetadata(STATE_DOMAIN, orjson.dumps(body).decode(), False)

    def reserving(self, ordinals: int) -> State:
        """Raises :class:`UnsupportedFeatureError` if all numbers that INT32 has were given to files."""
        if self.next_ordinal + ordinals >= INT32_LIMIT:
            raise UnsupportedFeatureError(
                f"the table has numbered {self.next_ordinal:,} files, and the limit is {INT32_LIMIT:,}: write its rows "
                "into a new table"
            )
        return replace(self, next_ordinal=self.next_ordinal + ordinals)

    def overwritten(self) -> State:
        """The state after an overwrite."""
        return replace(self, overwrite_epoch=self.overwrite_epoch + 1)

    @staticmethod
    def of(snapshot: Snapshot) -> State:
        domain = snapshot.domains.get(STATE_DOMAIN)
        if domain is None:
            raise TableDamagedError(
                f"version {snapshot.version} has no domain {STATE_DOMAIN!r}, which every version of a LakeMerge table "
                "has: a commit of something else removed it. Versions before that commit can still be opened.",
                version=snapshot.version,
            )
        try:
            body = orjson.loads(domain.configuration)
            if body["formatVersion"] != FORMAT_VERSION:
                raise UnsupportedFeatureError(
                    f"state format version {body['formatVersion']} is not understood; install a newer lakemerge"
                )
            return State(
                merger_epoch=whole_number(body["mergerEpoch"]),
                layout_epoch=whole_number(body["layoutEpoch"]),
                schema_epoch=whole_number(body["schemaEpoch"]),
                next_ordinal=whole_number(body["nextOrdinal"], below=INT32_LIMIT),
                fence_begin_version=whole_number(body["fenceBeginVersion"]),
                oldest_version=whole_number(body.get("oldestVersion", 0)),
                restore_epoch=whole_number(body.get("restoreEpoch", 0)),
                overwrite_epoch=whole_number(body.get("overwriteEpoch", 0)),
            )
        except (KeyError, ValueError, TypeError) as error:
            raise TableDamagedError(f"domain {STATE_DOMAIN!r} is damaged: {error!r}") from error
