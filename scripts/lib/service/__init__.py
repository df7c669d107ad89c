"""What `scripts/bench service` measures: a module called from many threads, and loaded by many processes."""
