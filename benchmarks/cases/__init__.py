"""What the harness runs: one function for each case. See :data:`benchmarks.harness.CASES`."""
