"""Words of the report for variants of a candidate that are no split of its work."""

from __future__ import annotations


def as_written(profile: str) -> str:
    """How the report calls the split of an engine's run of the original, beside that of Collage's form of the model."""
    return ", ".join(filter(None, ("as written", profile)))


def on_one_thread(split: str) -> str:
    """How the report calls the split of a kernel that was built for one thread, beside those for the team."""
    return ", ".join(filter(None, (split, "one thread")))
