"""Refuses to run if a user's own module hides one of this distribution's packages.

``mergers`` and ``compaction`` are common names. A folder of that name beside a user's script comes first on
``sys.path``, and would lead to a confusing ImportError from deep inside. The check runs when this module is imported.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

__all__ = ["check_not_shadowed"]


def check_not_shadowed() -> None:
    """Raise :class:`ImportError` that names the folder in the way, if there is one."""
    home = Path(__file__).resolve().parents[2]
    for name in ("mergers", "compaction"):
        found = importlib.util.find_spec(name)
        places = [] if found is None else list(found.submodule_search_locations or [found.origin or ""])
        if (home / name).is_dir() and [Path(place).resolve() for place in places] != [home / name]:
            where = ", ".join(places) or "nowhere"
            raise ImportError(
                f"lakemerge needs its own package {name!r} ({home / name}), but Python finds {where} first; "
                "rename that folder or module, or start Python from another directory"
            )


check_not_shadowed()
