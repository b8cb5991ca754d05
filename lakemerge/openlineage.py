"""Tells OpenLineage of what this process does with tables: a run of a job for each write, service and ingest.

It listens to the events of calls (:mod:`lakemerge.events`), and gives OpenLineage's own client what they say. Reads are
not told of: a read is no job.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from lakemerge.errors import DependencyMissingError
from lakemerge.events import Event, listen

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient

__all__ = ["READS", "WRITES", "emit"]

WRITES: Final[Mapping[str, bool]] = {
    "upsert": False,
    "delete": False,
    "delete_where": True,
    "update_where": True,
    "overwrite": False,
    "merge": True,
    "ingest": False,
    "alter": False,
    "compact": True,
    "compact_logs": True,
    "expire_tombstones": True,
    "forget": True,
    "maintain": True,
    "rescale": True,
    "restore": True,
    "unconvert": True,
    "vacuum": True,
    "record_send": False,
    "associate": False,
}
"""The operations that are runs, and whether the table is an input of them, too."""
READS: Final = frozenset(
    {"copy_to", "explain", "failed_keys", "get", "lineage", "query", "replay", "to_arrow", "to_df"}
)
"""The operations that are none. A copy and a replay fill another table, whose own calls are told of."""
_PRODUCER: Final = "urn:lakemerge"


def emit(client: OpenLineageClient | None = None, *, namespace: str = "lakemerge") -> Callable[[], None]:
    """Tell OpenLineage of each write, service and ingest of this process from now on.

    Each call is a run, with a START event and a COMPLETE or FAIL event, both sent when it has ended. If they cannot be
    sent, that is logged, and the call is as it was.

    :param client: by default the one that OpenLineage's own configuration gives (``OPENLINEAGE_URL``,
        ``openlineage.yml``).
    :param namespace: of the jobs. Their names are those of the table and the operation, such as ``lake/orders.upsert``.
    :returns: a function that ends it.
    :raises lakemerge.DependencyMissingError: OpenLineage's client is not installed.
    """
    try:
        from openlineage.client import OpenLineageClient
    except ImportError as error:
        raise DependencyMissingError(
            "OpenLineage's client is not installed: pip install 'lakemerge[openlineage]'"
        ) from error
    to = OpenLineageClient() if client is None else client

    def tell(event: Event) -> None:
        if event.operation in WRITES:
            for told in _run_events(event, namespace):
                to.emit(told)

    return listen(tell)


def _run_events(event: Event, namespace: str) -> list[Any]:
    from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
    from openlineage.client.facet_v2 import dataset_version_dataset, error_message_run, output_statistics_output_dataset
    from openlineage.client.uuid import generate_new_uuid

    ended = dt.datetime.now(dt.UTC)
    place, name = dataset_of(event.table)
    said = event.values()
    facets: dict[str, Any] = {}
    if "version" in said:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(str(said["version"]), producer=_PRODUCER)
    statistics = {ours: int(said[theirs]) for theirs, ours in _STATISTICS.items() if theirs in said}
    counted = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(**statistics, producer=_PRODUCER)
    output = OutputDataset(place, name, facets=facets, outputFacets={"outputStatistics": counted} if statistics else {})
    inputs = [InputDataset(*dataset_of(source)) for source in event.sources]
    if WRITES[event.operation]:
        inputs.append(InputDataset(place, name))
    failed: dict[str, Any] = {}
    if event.error is not None:
        message = f"{type(event.error).__name__}: {event.error}"
        failed["errorMessage"] = error_message_run.ErrorMessageRunFacet(message, "PYTHON", producer=_PRODUCER)
    run_id, job = str(generate_new_uuid()), Job(namespace, f"{name}.{event.operation}")
    states = (RunState.START, RunState.COMPLETE if event.error is None else RunState.FAIL)
    times = (ended - dt.timedelta(seconds=event.seconds), ended)
    return [
        RunEvent(
            eventType=state,
            eventTime=moment.isoformat(),
            run=Run(run_id, failed if state is RunState.FAIL else {}),
            job=job,
            inputs=inputs,
            outputs=[output] if state is RunState.COMPLETE else [OutputDataset(place, name)],
            producer=_PRODUCER,
        )
        for state, moment in zip(states, times, strict=True)
    ]


_STATISTICS: Final = {"rows": "rowCount", "bytes": "size", "files": "fileCount"}


def dataset_of(url: str) -> tuple[str, str]:
    """Namespace and name of a dataset, as OpenLineage names files: ``file`` and the path, or the bucket's URL and the
    key."""
    parts = urlsplit(url)
    if "://" not in url or parts.scheme == "file":
        return "file", parts.path if parts.scheme == "file" else url
    scheme = "s3" if parts.scheme == "s3a" else parts.scheme
    return f"{scheme}://{parts.netloc}", url.partition("://")[2].partition("/")[2].strip("/") or "/"
