"""Files become records of a table, each exactly once: from a folder or bucket to merged rows.

:meth:`lakemerge.LakeTable.ingest` makes a job. The table records what became of each file (docs/guides/ingest.md).
"""

from lakemerge.ingest.job import IngestJob
from lakemerge.ingest.options import Archive, Bins, Files, Fragments
from lakemerge.ingest.results import IngestFile, IngestResult, IngestStatus

__all__ = [
    "Archive",
    "Bins",
    "Files",
    "Fragments",
    "IngestFile",
    "IngestJob",
    "IngestResult",
    "IngestStatus",
]
