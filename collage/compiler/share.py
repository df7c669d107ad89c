"""A share of a budget: what one of several compiles may take, with what its user is told of that."""

from __future__ import annotations

import math

LEAST_S = 1e-3
"""The share of a compile that has only time for its first module, in seconds."""
_WORTH_TELLING_S = 0.1
"""A share of fewer seconds is what others have left, who were told of it."""


class Share(float):
    """The seconds that one of several compiles may take, which is handed on in the place of a budget.

    ``whole_s`` is the user's budget for all of them in seconds, or None without one. ``interrupted`` tells that Ctrl-C
    has ended an earlier one of them, so that this one hands over its first module.
    """

    whole_s: float | None
    interrupted: bool

    def __new__(cls, seconds: float, whole_s: float | None = None, *, interrupted: bool = False) -> Share:
        """A share of ``seconds``, or of what a first module needs where it was ``interrupted``."""
        found = super().__new__(cls, LEAST_S if interrupted else max(seconds, LEAST_S))
        found.whole_s = None if whole_s == math.inf else whole_s
        found.interrupted = interrupted
        return found


def whole_s(budget_s: float | None) -> float | None:
    """The user's budget, which that of a compile may be a share of; None for no limit."""
    return budget_s.whole_s if isinstance(budget_s, Share) else budget_s


def was_interrupted(budget_s: float | None) -> bool:
    """Whether Ctrl-C has ended a compile that shares the budget with this one."""
    return isinstance(budget_s, Share) and budget_s.interrupted


def is_used_up(budget_s: float) -> bool:
    """Whether the compiles before this one have left nothing of the budget that it shares with them."""
    return isinstance(budget_s, Share) and budget_s < _WORTH_TELLING_S


def budget_words(budget_s: float) -> str:
    """The budget of a compile in words."""
    if isinstance(budget_s, Share) and budget_s.whole_s is not None:
        return f"{budget_s:.3g} s, its share of the budget of {budget_s.whole_s:g} s"
    return f"the budget of {budget_s:g} s"
