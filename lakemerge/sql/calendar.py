"""The calendar in vectors: days since 1970-01-01 as years, months and days, and back.

Arrow's own functions end at the year 32767. Spark's dates go further.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["days_of", "month_days", "months_later", "year_month_day"]

Vector = npt.NDArray[Any]

_ERA_DAYS, _ERA_YEARS = 146_097, 400
_TO_1970 = 719_468
"""Days from the first of March of the year 0 to 1970-01-01. Years begin in March here, so a leap day is the last day of
its year."""
_MONTH_DAYS = np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])


def year_month_day(days: Vector) -> tuple[Vector, Vector, Vector]:
    """The proleptic Gregorian year, month and day of the month."""
    shifted = days.astype(np.int64) + _TO_1970
    era, day = np.divmod(shifted, _ERA_DAYS)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day_of_year = day - (365 * year + year // 4 - year // 100)
    month = (5 * day_of_year + 2) // 153
    day_of_month = day_of_year - (153 * month + 2) // 5 + 1
    month = np.where(month < 10, month + 3, month - 9)
    return year + era * _ERA_YEARS + (month <= 2), month, day_of_month


def days_of(year: Vector, month: Vector, day: Vector) -> Vector:
    """The opposite of :func:`year_month_day`, for months from 1 to 12."""
    year = year.astype(np.int64) - (month <= 2)
    era, year_of_era = np.divmod(year, _ERA_YEARS)
    day_of_year = (153 * np.where(month > 2, month - 3, month + 9) + 2) // 5 + day - 1
    day_of_era = year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year
    return era * _ERA_DAYS + day_of_era - _TO_1970


def month_days(year: Vector, month: Vector) -> Vector:
    """How many days a month has."""
    leap = ((year % 4 == 0) & (year % 100 != 0)) | (year % _ERA_YEARS == 0)
    return _MONTH_DAYS[np.clip(month, 1, 12) - 1] + (leap & (month == 2))


def months_later(days: Vector, months: int) -> Vector:
    """The same day of another month, or that month's last day if the month is too short."""
    year, month, day = year_month_day(days)
    year, month = np.divmod(year * 12 + month - 1 + months, 12)
    month += 1
    return days_of(year, month, np.minimum(day, month_days(year, month)))
