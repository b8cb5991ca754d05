"""Dates, times and time zones that are written as text, as values of Python."""

from __future__ import annotations

import datetime as dt
import re
import zoneinfo

__all__ = ["parse_date", "parse_timestamp", "parse_zone"]

_DATE = re.compile(r"(\d{4})(?:-(\d{1,2})(?:-(\d{1,2}))?)?")
_ZONE = r"Z|UTC|GMT|[+-]\d{1,2}(?::?\d{2})?|[A-Za-z]+(?:/[A-Za-z_+\-0-9]+)+"
_TIMESTAMP = re.compile(
    r"(?P<date>\d{4}(?:-\d{1,2}(?:-\d{1,2})?)?)"
    r"(?:[T ](?P<hour>\d{1,2}):(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:\.(?P<fraction>\d{1,6}))?)?"
    rf"\s*(?P<zone>{_ZONE})?)?"
)


def parse_date(text: str) -> dt.date | None:
    """Parse ``yyyy[-m[-d]]``. Returns ``None`` if the text is no such date."""
    match = _DATE.fullmatch(text.strip())
    if match is None:
        return None
    try:
        return dt.date(*(int(part or 1) for part in match.groups()))
    except ValueError:
        return None


def parse_timestamp(text: str) -> dt.datetime | None:
    """Parse ``yyyy[-m[-d]][ h:m[:s[.ffffff]][zone]]`` with ``T`` or a blank between. Returns ``None`` if the text is no
    such time. A zone is ``Z``, ``UTC``, ``+02:00`` or ``Europe/Oslo``. Without one the result has no zone."""
    match = _TIMESTAMP.fullmatch(text.strip())
    if match is None:
        return None
    day = parse_date(match["date"])
    if day is None:
        return None
    try:
        clock = dt.time(int(match["hour"] or 0), int(match["minute"] or 0), int(match["second"] or 0))
        zone = None if match["zone"] is None else _zone(match["zone"])
    except (ValueError, zoneinfo.ZoneInfoNotFoundError):
        return None
    micros = int((match["fraction"] or "").ljust(6, "0"))
    return dt.datetime.combine(day, clock, zone) + dt.timedelta(microseconds=micros)


def parse_zone(text: str) -> dt.tzinfo | None:
    """Parse ``Z``, ``UTC``, ``+02:00`` or ``Europe/Oslo``. Returns ``None`` for anything else, such as ``EST``, about
    which Java and Python do not agree."""
    if re.fullmatch(_ZONE, text) is None:
        return None
    try:
        return _zone(text)
    except (ValueError, zoneinfo.ZoneInfoNotFoundError):
        return None


def _zone(text: str) -> dt.tzinfo:
    if text in ("Z", "UTC", "GMT"):
        return dt.UTC
    if text[0] in "+-":
        digits = text[1:].replace(":", "")
        hours, minutes = (int(digits), 0) if len(digits) <= 2 else (int(digits[:-2]), int(digits[-2:]))
        offset = dt.timedelta(hours=hours, minutes=minutes)
        return dt.timezone(-offset if text[0] == "-" else offset)
    return zoneinfo.ZoneInfo(text)
