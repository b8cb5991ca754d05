"""Running a plan: merge, commit, report."""
