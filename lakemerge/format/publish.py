"""Whether other Delta engines are to see fresh rows: the table properties ``lakemerge.publish`` and
``lakemerge.publish.maxLag``, as values. Source: docs/table-format.md, section 11.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from lakemerge.delta import Metadata, Protocol, parse_duration_ms
from lakemerge.errors import TableDamagedError

__all__ = [
    "DELETION_VECTORS",
    "MAX_LAG",
    "PUBLISH",
    "VECTORS_ENABLED",
    "Publish",
    "publish_problems",
    "with_vectors",
    "with_vectors_enabled",
]

PUBLISH: Final = "lakemerge.publish"
MAX_LAG: Final = "lakemerge.publish.maxLag"
VECTORS_ENABLED: Final = "delta.enableDeletionVectors"
"""Delta's own property that says that writers may add deletion vectors. It comes and goes with the publication."""
DELETION_VECTORS: Final = "deletionVectors"
"""A way to publish, and Delta's feature."""
_REWRITE: Final = "rewrite"
_OFF: Final = "off"

_SHORT: Final = re.compile(r"([0-9]{1,9})(ms|s|m|h|d)")
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class Publish:
    """What a table's properties say."""

    mode: str = _OFF
    """``off``, ``deletionVectors`` or ``rewrite``."""
    max_lag_ms: int | None = None
    """How old a commit may be that other engines do not see; ``None`` where the table does not say."""

    @property
    def is_on(self) -> bool:
        return self.mode != _OFF

    @property
    def by_vectors(self) -> bool:
        return self.mode == DELETION_VECTORS

    @property
    def rewrites(self) -> bool:
        """Whether file slices with logs are rewritten, for engines that do not know deletion vectors."""
        return self.mode == _REWRITE

    @staticmethod
    def of(configuration: Mapping[str, str]) -> Publish:
        """Raises :class:`TableDamagedError` for values that no API sets."""
        told = {name: configuration[name] for name in (PUBLISH, MAX_LAG) if name in configuration}
        if problems := [problem for name, value in told.items() for problem in publish_problems(name, value)]:
            raise TableDamagedError("; ".join(problems), problems=tuple(problems))
        lag = told.get(MAX_LAG)
        return Publish(told.get(PUBLISH, _OFF), None if lag is None else _duration_ms(lag))


def publish_problems(name: str, value: str) -> list[str]:
    """What is wrong with the value of one of the two properties, if anything."""
    if name == PUBLISH:
        modes = (DELETION_VECTORS, _REWRITE, _OFF)
        if value in modes:
            return []
        return [f"table property {name!r} is one of {', '.join(map(repr, modes))}, not {value!r}"]
    if _duration_ms(value) is None:
        return [f"table property {name!r} is a time such as '0s', '30s' or '5m', not {value!r}"]
    return []


def with_vectors(protocol: Protocol) -> Protocol:
    """The protocol of a table with deletion vectors. It is never lowered again."""
    features = frozenset({DELETION_VECTORS})
    return Protocol(
        3, 7, protocol.reader_features | features, protocol.writer_features | features, extra=protocol.extra
    )


def with_vectors_enabled(metadata: Metadata) -> Metadata:
    """The metadata with Delta's own property as the table's publication asks for it."""
    by_vectors = Publish.of(metadata.configuration).by_vectors
    if by_vectors == (metadata.configuration.get(VECTORS_ENABLED) == "true"):
        return metadata
    left = {name: value for name, value in metadata.configuration.items() if name != VECTORS_ENABLED}
    return replace(metadata, configuration=left | ({VECTORS_ENABLED: "true"} if by_vectors else {}))


def _duration_ms(text: str) -> int | None:
    found = _SHORT.fullmatch(text)
    return parse_duration_ms(text) if found is None else int(found[1]) * _UNIT_MS[found[2]]
