"""How much of a budget is kept for the end of a compile: for the last comparison, the last check and loading."""

from __future__ import annotations

_SHARE = 0.25
_USUAL_S = 20.0
_OF_COMPARING = 3.0
"""A short comparison loads the plans once. The end loads one of them three times: to check it, by itself, and here."""


def kept_s(budget_s: float, comparing_s: float = 0.0) -> float:
    """The seconds of a budget that are kept for its end, where a short comparison took ``comparing_s`` seconds."""
    return min(_SHARE * budget_s, max(_USUAL_S, _OF_COMPARING * comparing_s))
