"""Mixes with made-up costs: what is placed, run, corrected and placed again."""

from __future__ import annotations

import pytest

from collage.compiler.placing import place
from collage.compiler.plan import CONCURRENT
from collage.compiler.propose.everything import doubtful, everything
from collage.compiler.propose.mixes import calibrated, first_mix, other_variants
from collage.compiler.propose.regions import regions as merges_and_splits
from collage.compiler.propose.streams import gpu_streams, streams
from collage.errors import NoPlacementError
from collage.graph.storage import Storage
from collage.kernel.options import Variant
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.results import IN_NETWORK, Measurement, Rejection, RejectionKind, Slower
from collage.schedule.schedule import TEAM
from collage.search.candidates import Offer
from tests.helpers.compiler.null import (
    Costs,
    Made,
    NullBackend,
    NullEngine,
    NullMeasurer,
    backends_of,
    each_node,
    fork,
    regions,
)

LIBRARY, OTHER, ENGINE = NullBackend("lib", team=True), NullBackend("other", team=True), NullEngine("engine")


def placed(each: Made) -> list[tuple[str, tuple[int, ...]]]:
    """The regions of the cheapest placement by what is known."""
    return [(c.backend, c.nodes) for c in place(each.bench).candidates]


def test_the_cheapest_cover_is_placed() -> None:
    each = Made({**each_node("lib", 10.0), ("lib", (1, 2)): 12.0}, LIBRARY).measured()
    assert placed(each) == [("lib", (0,)), ("lib", (1, 2)), ("lib", (3,))]
    assert each.bench.known.search_s > 0


def test_the_first_mix_takes_few_measurements_and_more_if_they_cover_nothing() -> None:
    few = Made(
        {**each_node("lib", 10.0), **each_node("other", 12.0), **each_node("engine", 15.0)},
        LIBRARY,
        OTHER,
        ENGINE,
    )
    few.run(first_mix)
    assert {request.backend for request in few.measurer.asked} == {"lib", "other"}
    assert len(few.placed) == 1
    # Two libraries share nodes, and only another offer covers what is between them.
    costs: Costs = {
        ("lib", (0, 1)): 5.0,
        ("other", (1, 2, 3)): 5.0,
        ("engine", (0,)): 50.0,
        ("engine", (2, 3)): 50.0,
    }
    shared = Made(costs, LIBRARY, OTHER, ENGINE).run(first_mix)
    assert len(shared.placed) == 1
    with pytest.raises(NoPlacementError):
        place(Made({("lib", (0,)): 1.0}, LIBRARY).measured().bench)
    none = Made({("lib", (0,)): 1.0}, LIBRARY).run(first_mix)
    assert none.placed == [] and "can run" in str(none.bench.known.no_placement)


def test_what_takes_longer_in_the_network_is_placed_again() -> None:
    each = Made({**each_node("lib", 10.0), ("other", (1, 2)): 22.0}, LIBRARY, OTHER).measured()
    each.runs.network_us = {("lib", (1,)): 20.0, ("lib", (2,)): 20.0}
    each.run(calibrated)
    assert [*dict.fromkeys(each.runs.ran)] == ["lib lib lib lib", "lib other lib"]
    assert [name for name, _ in regions(each.placed[0])] == ["lib", "other", "lib"]


def test_a_kernel_that_fails_in_the_network_is_placed_around() -> None:
    each = Made({**each_node("lib", 10.0), **each_node("other", 12.0)}, LIBRARY, OTHER).measured()
    each.runs.worn_out = {("lib", (2,)): "open", ("lib", (0,)): "times"}
    each.run(calibrated)
    assert [name for name, _ in regions(each.placed[0])] == ["other", "lib", "other", "lib"]


def test_a_mix_that_fails_as_a_whole_is_placed_without_one_backend() -> None:
    each = Made({**each_node("lib", 1.0), **each_node("other", 12.0)}, LIBRARY, OTHER).measured()
    each.runs.drops = lambda executable: "lib" in backends_of(executable)
    each.run(calibrated)
    assert {name for name, _ in regions(each.placed[0])} == {"other"}
    assert each.bench.known.left_out == {"lib"}
    each = Made(each_node("lib", 1.0), LIBRARY, ENGINE, engines={"engine, as written": 9.0})
    each.runs.drops = lambda executable: True
    assert each.compiled().plan.label == "engine, as written"


def test_a_backend_with_many_faults_is_left_out() -> None:
    each = Made({**each_node("lib", 1.0), ("engine", (0, 1, 2, 3)): 100.0}, LIBRARY, ENGINE).measured()
    for count in range(5):
        assert placed(each)[0] == ("lib", (0,))
        failed = CandidateRequest((0,), "lib", Variant(split=str(count)))
        each.bench.known.outcomes[failed] = Rejection(RejectionKind.CRASHED, f"{IN_NETWORK}: SIGSEGV")
    assert placed(each) == [("engine", (0, 1, 2, 3))]


def test_one_run_shows_another_variant_of_every_region() -> None:
    each = Made({**each_node("lib", 10.0), **each_node("other", 12.0)}, LIBRARY, OTHER).measured()
    each.runs.network_us = {("lib", (1,)): 36.0, ("other", (1,)): 12.0}
    each.run(calibrated, other_variants)
    assert [name for name, _ in regions(each.placed[0])] == ["lib", "other", "lib", "lib"]


def test_everything_else_is_measured_where_it_could_gain() -> None:
    costs = {**each_node("lib", 10.0), ("lib", (1, 2)): 12.0, ("other", (3,)): 1.0}
    each = Made(costs, LIBRARY, OTHER)
    each.bench.model  # noqa: B018  (finds the offers)
    each.bench.race(
        [o.request for o in each.bench.known.offers if len(o.request.nodes) == 1 and o.request.backend == "lib"]
    )
    each.run(calibrated)
    assert len(regions(each.placed[0])) == 4
    each.run(everything)
    assert regions(each.placed[0]) == [("lib", (0,)), ("lib", (1, 2)), ("other", (3,))]


def lost(us: float, least_us: float) -> Made:
    """Nodes 1 and 2 as one region have lost a race early; measured to the end they take ``us``."""
    each = Made({**each_node("lib", 10.0), ("lib", (1, 2)): us}, LIBRARY)
    each.measurer.outrun = {("lib", (1, 2)): Slower(least_us, 11.0, 3)}
    return each.measured().run(calibrated, doubtful)


def test_what_lost_early_is_measured_to_the_end_if_it_could_gain() -> None:
    each = lost(12.0, 11.5)
    assert regions(each.placed[0]) == [("lib", (0,)), ("lib", (1, 2)), ("lib", (3,))]
    (fused,) = [o for r, o in each.bench.known.outcomes.items() if len(r.nodes) == 2]
    assert isinstance(fused, Measurement)
    each = lost(1.0, 30.0)
    assert len(regions(each.placed[0])) == 4
    (fused,) = [o for r, o in each.bench.known.outcomes.items() if len(r.nodes) == 2]
    assert isinstance(fused, Slower)


def test_what_lost_against_a_kernel_that_was_rejected_since_is_measured_to_the_end() -> None:
    each = Made({**each_node("lib", 10.0), **each_node("other", 20.0)}, LIBRARY, OTHER)
    each.measurer.outrun = {("other", (n,)): Slower(19.0, 10.0, 12) for n in range(4)}
    each.measured()
    each.runs.worn_out = {("lib", (1,)): "turn"}
    each.run(calibrated)
    assert regions(each.placed[0]) == [("lib", (0,)), ("other", (1,)), ("lib", (2,)), ("lib", (3,))]


def test_neighbours_on_one_engine_are_measured_as_one_region() -> None:
    costs = {**each_node("engine", 10.0), ("lib", (0,)): 1.0, ("lib", (3,)): 1.0}
    each = Made(costs, LIBRARY, ENGINE).measured().run(calibrated)
    each.measurer.costs = {**costs, ("engine", (1, 2)): 12.0}
    each.run(merges_and_splits)
    assert regions(each.placed[0]) == [("lib", (0,)), ("engine", (1, 2)), ("lib", (3,))]
    assert "neighbours on one engine" in [offer.pattern for offer in each.bench.known.offers]


# Launches side by side


def forked(single_us: float) -> Made:
    """Two kernels that do not depend on each other, and take this long on one thread."""
    costs = {("lib", (0,)): 100.0, ("lib", (1,)): 100.0, ("lib", (2,)): 10.0}
    each = Made(costs, LIBRARY, model=fork)
    each.measurer.single = NullMeasurer(each.bench.model, dict.fromkeys(costs, single_us), each.step)
    return each.measured().run(calibrated)


def test_what_is_faster_side_by_side_is_run() -> None:
    each = forked(110.0).run(streams)
    plan = each.placed[0]
    assert plan.label == CONCURRENT and plan.algorithm in ("list", "nimble", "opara")
    assert plan.streams is not None and 100.0 < plan.placement.predicted_us < 150.0
    assert [request.nodes for request in each.bench.known.single_threaded] == [
        (0,),
        (1,),
    ]  # (2,) waits for both
    assert len(forked(210.0).run(streams).placed) == 1


def test_streams_that_fail_leave_the_mix() -> None:
    each = forked(110.0)
    each.runs.drops = lambda executable: executable.plan.streams is not None
    assert [plan.streams for plan in each.run(streams).placed] == [None]


def test_streams_of_a_gpu() -> None:
    gpu = Storage("cuda")
    each = Made(each_node("lib", 10.0, 3), NullBackend("lib"), model=fork)
    requests = [
        CandidateRequest((node,), "lib", Variant((gpu,) * inputs, (gpu,))) for node, inputs in ((0, 1), (1, 1), (2, 2))
    ]
    each.bench.model  # noqa: B018  (finds other offers)
    each.bench.known.offers = [Offer(request, "pattern") for request in requests]
    each.bench.race(requests)
    each.run(calibrated, gpu_streams)
    # All algorithms make the same schedule.
    (plan,) = [plan for plan in each.placed if plan.streams is not None]
    assert plan.algorithm == "nimble" and plan.streams is not None and plan.streams.schedule.count == 2
    program = each.referee.executable(plan).program
    numbers = program.ordered.schedule.streams
    there = [each for each, region in zip(numbers, program.launches, strict=True) if region.nodes]
    copies = [each for each, region in zip(numbers, program.launches, strict=True) if not region.nodes]
    assert sorted(set(there)) == [0, 1] and set(copies) == {TEAM}
    assert len(program.ordered.events) == 1
