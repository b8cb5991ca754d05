"""A plain Delta table becomes a LakeMerge table in place, and the other way round.

:mod:`lakemerge.convert.converting` and :mod:`lakemerge.convert.unconverting` are the two ways. Source:
docs/table-format.md, section 15.
"""
