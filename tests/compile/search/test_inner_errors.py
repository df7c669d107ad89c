"""Regions are charged at least what the products inside them add by themselves, with made-up measurements."""

from __future__ import annotations

import math

import pytest

from collage.frontend.model import Model, import_model
from collage.frontend.relax.op_kinds import COMPUTE_BOUND
from collage.frontend.subgraph import edges
from collage.graph.storage import PLAIN, narrowed
from collage.kernel.options import Variant
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.results import Measurement
from collage.search.candidates import Offer, candidates_of
from collage.search.errors import ErrorModel
from collage.search.inner_errors import InnerErrors
from tests.helpers.models import conv_net

BF16 = Variant(precision="bf16")
ERRORS = ErrorModel({})  # all of an error counts


@pytest.fixture(scope="module")
def model() -> Model:
    return import_model(conv_net())


def products(model: Model) -> list[int]:
    return [n for n, node in enumerate(model.graph.nodes) if node.op in COMPUTE_BOUND]


def measured(error: float) -> Measurement:
    return Measurement(10.0, 0.1, 9.0, 10, error)


def test_luck_at_the_outputs_of_a_region_is_not_believed(model: Model) -> None:
    first, second, *_ = products(model)
    everything = tuple(range(len(model.graph.nodes)))
    outcomes = {
        CandidateRequest((first,), "lib", BF16): measured(3e-3),
        CandidateRequest((first,), "other", BF16): measured(5e-3),
        CandidateRequest((second,), "lib", BF16): measured(4e-3),
        CandidateRequest(everything, "engine", BF16): measured(1e-4),
    }
    offers = [Offer(request, "any") for request in outcomes]
    found = {(c.backend, c.nodes): math.sqrt(c.error) for c in candidates_of(model, offers, (), outcomes, (), ERRORS)}
    assert found["engine", everything] == pytest.approx(math.hypot(5e-3, 4e-3))
    assert found["lib", (first,)] == pytest.approx(3e-3)


def test_a_region_that_is_worse_than_its_products_keeps_its_error(model: Model) -> None:
    first, *_ = products(model)
    request = CandidateRequest(tuple(range(len(model.graph.nodes))), "engine", BF16)
    outcomes = {CandidateRequest((first,), "lib", BF16): measured(3e-3), request: measured(2e-2)}
    offers = [Offer(each, "any") for each in outcomes]
    (found,) = (c for c in candidates_of(model, offers, (), outcomes, (), ERRORS) if c.backend == "engine")
    assert math.sqrt(found.error) == pytest.approx(2e-2)


def test_the_smallest_kernels_of_a_product_tell_of_larger_ones(model: Model) -> None:
    first, second, *_ = products(model)
    alone, more = (
        CandidateRequest((first,), "lib", BF16),
        CandidateRequest((first, first + 1), "engine", BF16),
    )
    inner = InnerErrors.of(model, {alone: measured(3e-3), more: measured(1e-4)}, ERRORS)
    assert inner.within(alone) == 0
    assert inner.within(more) == pytest.approx(9e-6)
    assert inner.within(CandidateRequest((first, second), "engine", BF16)) == pytest.approx(9e-6)
    assert inner.within(CandidateRequest((first, second), "engine", Variant(precision="int8"))) == 0


def test_what_is_read_and_written_rounded_is_charged(model: Model) -> None:
    """On the one input that a softmax of rounded scores was measured on, its error was small by luck."""
    last = len(model.graph.nodes) - 1
    (value, *_), (output,) = edges(model, (last,))
    errors = ErrorModel({value: 8.0, output: 1.0})
    narrow = narrowed(PLAIN, "bf16")
    found = {}
    for about, storage in (("wide", PLAIN), ("narrow", narrow)):
        variant = Variant((storage, *[PLAIN] * (len(edges(model, (last,))[0]) - 1)), (PLAIN,), precision="bf16")
        request = CandidateRequest((last,), "lib", variant)
        outcomes = {request: measured(1e-4)}
        (candidate,) = candidates_of(model, [Offer(request, "any")], (), outcomes, (), errors)
        found[about] = math.sqrt(candidate.error)
    assert found == pytest.approx({"wide": 1e-4, "narrow": 8.0 / 512})
