"""The words of reports for the way in which a candidate runs."""

from __future__ import annotations

from collage.schedule.region import CandidateId


def as_written(profile: str, precision: str = "") -> str:
    """The name of a run of an engine on the model as its author wrote it, with ``profile`` and in a ``precision``."""
    return ", ".join(filter(None, ("as written", profile, precision)))


def split_words(candidate: CandidateId, threads: int) -> str:
    """How a candidate divides its work, in words, where kernels usually have ``threads`` threads.

    A reduced precision is named, too.
    """
    split = as_written(candidate.profile) if candidate.original else candidate.split
    alone = "one thread" if candidate.threads < threads else ""
    return ", ".join(filter(None, (split, candidate.precision, alone)))
