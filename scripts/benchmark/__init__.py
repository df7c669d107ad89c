"""The studies of `scripts/bench_cpu`."""
