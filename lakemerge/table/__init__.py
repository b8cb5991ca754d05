"""The table: what a user calls."""

from lakemerge.table.table import LakeTable

__all__ = ["LakeTable"]
