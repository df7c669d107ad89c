"""Words of the report for how a candidate runs."""

from __future__ import annotations

from collage.schedule.region import CandidateId


def as_written(profile: str) -> str:
    """What an engine's run of the original is called, beside that of Collage's form of the model."""
    return ", ".join(filter(None, ("as written", profile)))


def split_words(candidate: CandidateId, threads: int) -> str:
    """How a candidate divides its work, where kernels usually have so many threads."""
    split = as_written(candidate.profile) if candidate.original else candidate.split
    return ", ".join(filter(None, (split, "one thread" if candidate.threads < threads else "")))
