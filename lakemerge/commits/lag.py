"""How old the oldest commit is that other Delta engines do not see."""

from __future__ import annotations

from collections.abc import Callable

from lakemerge.delta.listing import commit_path
from lakemerge.handle import Handle
from lakemerge.layout.published import Published, published_of
from lakemerge.layout.view import TableView

__all__ = ["lag_ms"]


def lag_ms(handle: Handle, view: TableView, now_ms: Callable[[], int], found: Published | None = None) -> int:
    """Milliseconds since the oldest commit that other engines do not see in all file slices; 0 if they see everything.
    A commit that was cleaned up counts as made with the oldest one that is there.

    :param now_ms: the time: the store's where something is decided, the host's where it is shown, because to learn the
        store's is a write.
    :param found: what other engines see of ``view``, where it is known.
    """
    found = published_of(view) if found is None else found
    if found.oldest is None:
        return 0
    listed = handle.store.list("_delta_log", start_after=f"{commit_path(found.oldest)[:-1]}")
    first = next((file for file in listed if file.path.endswith(".json")), None)
    return 0 if first is None else max(0, now_ms() - first.modified_ms)
