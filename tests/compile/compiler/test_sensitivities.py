"""Sensitivities of a model that is compiled: they are measured until the time is over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collage.compiler.accuracy import Accuracy, Asked
from collage.compiler.metrics import Metric
from collage.compiler.sensitivities import error_model
from collage.core.deadline import BudgetOverError, Deadline
from collage.kernel.options import Variant
from collage.measure.worker.protocol import CandidateRequest
from collage.search.candidates import Offer
from tests.compiler.null import Made, chain


def test_a_budget_ends_them() -> None:
    made = Made({})
    offer = Offer(CandidateRequest((1,), "a", Variant(precision="bf16")), "pattern")
    compilation = replace(made.start, offers=(offer,))
    accuracy = Accuracy.of(chain(), made.model, Asked(1e-2, Metric(), ()), 0, Deadline())
    assert error_model(made.context, compilation, accuracy).sensitivities
    made.context.course.deadline.end_after(0.0)
    with pytest.raises(BudgetOverError):
        error_model(made.context, compilation, accuracy)
