"""Measuring a few offers for a quick compile."""

from __future__ import annotations

from dataclasses import replace

from collage.compiler.passes.measure_few import MeasureFew
from collage.graph.storage import BLOCKED
from collage.kernel.options import Variant
from collage.measure.worker.protocol import CandidateRequest
from collage.search.candidates import Offer
from tests.compiler.null import WHOLE, Made, NullBackend, each_node

LIBRARY = NullBackend("lib")
ENGINE = NullBackend("engine", engine=True)


def test_a_quick_compile_measures_the_whole_on_engines_and_the_largest_pieces_of_libraries() -> None:
    costs = {
        **each_node("lib", 1.0, 3),
        ("lib", (0, 1)): 1.0,
        **each_node("engine", 1.0),
        ("engine", WHOLE): 9.0,
    }
    made = Made(costs, LIBRARY, ENGINE)
    start = made.measured()
    layout = Offer(CandidateRequest((2,), "lib", Variant((BLOCKED,), (BLOCKED,))), "pattern")
    start = replace(start, offers=(*start.offers, layout), outcomes={})
    found = MeasureFew()(made.context, start)
    measured = sorted((request.backend, request.nodes) for request in found.outcomes)
    assert measured == [("engine", WHOLE), ("engine", (3,)), ("lib", (0, 1)), ("lib", (2,))]
    assert {offer.request for offer in found.offers} == found.outcomes.keys()
    assert made.measurer.switched == [()]


def test_what_nothing_takes_in_the_plain_format_is_measured_in_others() -> None:
    """Without engines a depthwise convolution has kernels for blocked layouts only."""
    made = Made(each_node("lib", 1.0), LIBRARY)
    start = made.measured()
    others = [
        Offer(CandidateRequest((node,), "lib", Variant((BLOCKED,), (BLOCKED,))), "pattern") for node in (2, 3)
    ]
    plain = [offer for offer in start.offers if offer.request.nodes != (3,)]
    start = replace(start, offers=(*plain, *others), outcomes={})
    asked = {offer.request for offer in (*plain, others[1])}
    assert {offer.request for offer in MeasureFew()(made.context, start).offers} == asked


def test_every_plain_offer_is_measured_where_a_few_do_not_do() -> None:
    costs = {**each_node("lib", 1.0, 3), ("lib", (0, 1)): 1.0, **each_node("engine", 1.0)}
    made = Made(costs, LIBRARY, ENGINE)
    found = MeasureFew(every=True)(made.context, made.measured())
    assert len(found.outcomes) == len(costs)


def test_kernels_of_reduced_precision_are_measured_last() -> None:
    made = Made({**each_node("lib bf16", 1.0, 2), **each_node("lib", 2.0, 2)}, LIBRARY, tolerance=1e-2)
    MeasureFew()(made.context, made.measured())
    assert [request.variant.precision for request in made.measurer.asked] == ["", "", "bf16", "bf16"]
