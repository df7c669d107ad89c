"""Steering: after each placement that was run, how much error the next one may be predicted to have."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from collage.search.errors import ErrorBudget, of_outputs
from collage.search.placement import Placement

_LEAST, _MOST = 0.25, 16.0
"""The least and the largest factor by which one placement may show that predictions are wrong."""


@dataclass
class Steering:
    """Corrects a budget by errors that placements were found to have, where ``aimed`` is the error that is wanted.

    Where the metric is ``predicted``, the model of errors learns from each placement (``search.error_corrections``).
    What is left of the difference between model and latest placement is taken for that of the next one, too. Else the
    predicted error counts as a measure of how much is reduced, and only the budget is scaled.
    """

    budget: ErrorBudget
    aimed: float
    predicted: bool
    _above: float = field(default=math.inf, init=False)
    """The least predicted error, in the unit of the budget, of a placement that was above the aim."""

    def __post_init__(self) -> None:
        if self.predicted:
            self._aim()

    def learn(self, placement: Placement, error: float) -> None:
        """The placement has this error by the metric, and some kernels of reduced precision."""
        foreseen = of_outputs(placement.error)
        expected = foreseen if self.predicted else self.aimed
        factor = min(max(error / expected, _LEAST), _MOST)
        if self.predicted:
            model = self.budget.model.corrected(placement.candidates, factor * foreseen)
            self.budget = replace(self.budget, model=model)
            self._aim()
        else:
            self.budget = replace(self.budget, error=foreseen / factor)
            if factor > 1:
                self._above = min(self._above, foreseen)

    def _aim(self) -> None:
        """Set the budget so that a placement like the latest one would have the error that is wanted."""
        model = self.budget.model
        factor = model.of_plan(model.seen[-1]) / model.seen[-1].error if model.seen else 1.0
        above = [model.of_plan(each) for each in model.seen if each.error > self.aimed]
        self.budget = replace(self.budget, error=factor * self.aimed)
        self._above = min(above, default=math.inf)

    def step_back(self) -> bool:
        """Allow more, since no placement of reduced precision is predicted to be within the budget.

        What adds least may be nearer to the aim than what was run: half of the way to that is allowed, in orders of
        magnitude. False where nothing was run.
        """
        if not self.budget.error < self._above < math.inf:
            return False
        self.budget = replace(self.budget, error=math.sqrt(self.budget.error * self._above))
        return True
