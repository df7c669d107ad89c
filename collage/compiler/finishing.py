"""How much of a budget is kept for the end of a compile: for the last comparison, the last check and loading."""

from __future__ import annotations

_SHARE = 0.25
_USUAL_S = 20.0
_OF_COMPARING = 3.0
"""A short comparison loads the plans once. The end loads one of them three times: to check it, by itself, and here."""
_LEAST_S, _MOST_S = 10.0, 30.0


def kept_s(budget_s: float, comparing_s: float = 0.0) -> float:
    """The seconds of a budget that are kept for its end, where a short comparison took ``comparing_s`` seconds."""
    return min(_SHARE * budget_s, max(_USUAL_S, _OF_COMPARING * comparing_s))


def least_s(comparing_s: float | None) -> float:
    """The seconds that an early engine has at least to be checked and loaded, also beyond the budget.

    A worker that was stopped has to start again. On a busy machine a budget of 30 s left 3 s, and a first module that
    took twice as long was handed over; BERT-base took longer than 10 s. So the engine has as long as a short comparison
    took, ``comparing_s`` seconds where there was one.
    """
    return min(max(_LEAST_S, comparing_s or 0.0), _MOST_S)
