"""Which Delta tables can be read and written: protocol versions, features, table properties.

A feature that is not understood is refused, by name (Delta protocol, section "Table Features"). A feature that is
listed but not active in the table's metadata requires nothing from a writer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from lakemerge.delta.actions import Metadata, Protocol
from lakemerge.errors import UnsupportedFeatureError

__all__ = [
    "READER_FEATURES",
    "WRITER_FEATURES",
    "check_readable",
    "check_writable",
    "duration_ms",
    "in_commit_timestamps",
    "is_set",
    "parse_checkpoint_interval",
    "parse_duration_ms",
    "writer_features",
]

READER_FEATURES: Final = frozenset(
    {"columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "v2Checkpoint", "vacuumProtocolCheck"}
)
WRITER_FEATURES: Final = frozenset(
    {
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "inCommitTimestamp",
        "lakemerge",
        "timestampNtz",
        "typeWidening",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)

_IMPLIED: Final[Mapping[int, tuple[str, ...]]] = {
    2: ("appendOnly", "invariants"),
    3: ("checkConstraints",),
    4: ("changeDataFeed", "generatedColumns"),
    5: ("columnMapping",),
    6: ("identityColumns",),
}
"""Writer version below 7 -> the features that it adds to earlier versions."""

_UNIT_MS: Final = {
    "millisecond": 1,
    "second": 1_000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
    "week": 604_800_000,
}
_MAPPING_MODE: Final = "delta.columnMapping.mode"
_MODES: Final = ("none", "name", "id")
_NUMBER: Final = re.compile("[0-9]{1,18}")
_POSITIVE: Final = re.compile("[1-9][0-9]{0,8}")


def check_readable(protocol: Protocol, metadata: Metadata | None = None) -> None:
    """Raise :class:`UnsupportedFeatureError` unless a table of this protocol can be read.

    With ``metadata``, the mode of its column mapping is checked, too.
    """
    if protocol.min_reader > 3:
        raise UnsupportedFeatureError(
            f"the table needs Delta reader version {protocol.min_reader}; this library reads up to 3",
            min_reader=protocol.min_reader,
        )
    _refuse(protocol.reader_features - READER_FEATURES, "read")
    if metadata is not None and (mode := metadata.configuration.get(_MAPPING_MODE, "none")) not in _MODES:
        _refuse(frozenset({f"columnMapping of mode {mode!r}"}), "read")


def check_writable(protocol: Protocol, understood_writer: frozenset[str], *, metadata: Metadata | None = None) -> None:
    """Raise :class:`UnsupportedFeatureError` unless a table of this protocol can be written by
    a writer that honours ``understood_writer``.

    With ``metadata``, features that it does not activate (``appendOnly`` without
    ``delta.appendOnly = true``, constraints without any constraint ...) are no hindrance.
    """
    check_readable(protocol, metadata)
    if protocol.min_writer > 7:
        raise UnsupportedFeatureError(
            f"the table needs Delta writer version {protocol.min_writer}; this library writes up to 7",
            min_writer=protocol.min_writer,
        )
    unknown = writer_features(protocol) - understood_writer
    if metadata is not None:
        unknown = frozenset(feature for feature in unknown if not _dormant(feature, metadata))
    _refuse(unknown, "written")


def writer_features(protocol: Protocol) -> frozenset[str]:
    """The features a writer must honour: those listed, or those the writer version implies."""
    if protocol.min_writer >= 7:
        return protocol.writer_features
    return frozenset(
        feature for version, features in _IMPLIED.items() if version <= protocol.min_writer for feature in features
    )


def in_commit_timestamps(metadata: Metadata) -> bool:
    """Whether commits carry their own timestamps."""
    return is_set(metadata, "delta.enableInCommitTimestamps")


def duration_ms(metadata: Metadata, key: str, *, default: int) -> int | None:
    """A table property such as ``interval 7 days`` in milliseconds, ``None`` if it cannot be read."""
    text = metadata.configuration.get(key)
    return default if text is None else parse_duration_ms(text)


def parse_duration_ms(text: str) -> int | None:
    """``interval 7 days`` in milliseconds; ``None`` if it is no interval, or has no fixed length, such as a month."""
    words = re.sub(r"^\s*interval\s+", "", text.lower()).split()
    total = 0
    if not words or len(words) % 2:
        return None
    for number, unit in zip(words[::2], words[1::2], strict=True):
        scale = _UNIT_MS.get(unit.removesuffix("s"))
        if scale is None or not _NUMBER.fullmatch(number):
            return None
        total += int(number) * scale
    return total


def parse_checkpoint_interval(text: str) -> int | None:
    """``delta.checkpointInterval``, in commits; ``None`` if it is no number from 1 to 999,999,999."""
    return int(text) if _POSITIVE.fullmatch(text) else None


def is_set(metadata: Metadata, key: str) -> bool:
    """Whether a boolean table property is true."""
    return metadata.configuration.get(key, "false").strip().lower() == "true"


def _dormant(feature: str, metadata: Metadata) -> bool:
    match feature:
        case "appendOnly":
            return not is_set(metadata, "delta.appendOnly")
        case "changeDataFeed":
            return not is_set(metadata, "delta.enableChangeDataFeed")
        case "checkConstraints":
            return not any(key.startswith("delta.constraints.") for key in metadata.configuration)
        case "columnMapping":
            return metadata.configuration.get(_MAPPING_MODE, "none") == "none"
        case "invariants":
            return '"delta.invariants"' not in metadata.schema_string
        case "allowColumnDefaults":
            return '"CURRENT_DEFAULT"' not in metadata.schema_string
        case "generatedColumns":
            return '"delta.generationExpression"' not in metadata.schema_string
        case "identityColumns":
            return '"delta.identity.' not in metadata.schema_string
        case _:
            return False


def _refuse(features: frozenset[str], use: str) -> None:
    if features:
        names = tuple(sorted(features))
        raise UnsupportedFeatureError(
            f"the table uses {', '.join(names)}; with that it cannot be {use} by this library: a newer "
            "lakemerge may know it",
            features=names,
        )
