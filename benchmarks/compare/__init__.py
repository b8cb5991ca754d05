"""One workload over LakeMerge and other table formats, side by side; see docs/benchmarks.md."""
