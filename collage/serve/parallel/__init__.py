"""A decoder on several processes: a cache that they share, or layers one after another; see docs/parallel.md."""
