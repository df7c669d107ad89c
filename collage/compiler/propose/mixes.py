"""Mixes: placements by what is known, run in the network, corrected by what that shows, and placed again."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Collection, Generator, Sequence
from dataclasses import replace

from collage.backends.base import VIEW, BackendKind
from collage.compiler.bench import Bench
from collage.compiler.best import Best
from collage.compiler.placing import field_of, place, uncovered, why_uncovered
from collage.compiler.plan import Failed, Placed, Plan, Ran, StreamPlan, Verdict
from collage.compiler.propose.guessed import wanted
from collage.errors import ModelError, NoPlacementError
from collage.measure.worker.protocol import CandidateRequest
from collage.search.candidates import Offer
from collage.search.filling import filling
from collage.search.others import others
from collage.search.placement import Placement, check_placement, finish
from collage.search.promising import promising as promising_offers

log = logging.getLogger(__name__)

_HOPELESS = math.log(2)
"""A kernel with such a loss on regions like these is measured last."""
_ATTEMPTS = 50
"""A kernel that fails in a network is rejected, and the model is placed again, at most so many times in a row."""


def mix_of(best: Best) -> Placed | None:
    """The best mix so far in the model's own dtypes, with its launches one after another."""
    for plan in best.everything():
        if isinstance(plan, Placed) and plan.streams is None and not plan.reduced:
            return plan
    return None


def planned(bench: Bench, placement: Placement, streams: StreamPlan | None = None) -> Placed:
    """The placement as a plan, with an engine for the suffix if the model has one."""
    suffix = "" if bench.imported.suffix is None else bench.known.suffix or next(iter(bench.task.engines), "")
    return Placed(placement, streams, suffix)


def first_mix(bench: Bench, best: Best, most: int = 2, rounds: int = 2) -> Generator[Plan, Verdict, None]:
    """A mix of the kernels that win by what is known, at most so many a region. More are measured if some fail."""
    refuse(bench)
    bench.measure_switch()
    while True:
        requests = wanted(bench, most)
        bench.race(requests)
        try:
            yield from _suffix_engines(bench)
            yield from calibrated(bench, best, rounds)
            return
        except NoPlacementError as error:
            log.info("no placement yet: %s", error)
            bench.known.no_placement = error
            if not requests:
                raise


def quick_mix(bench: Bench, best: Best) -> Generator[Plan, Verdict, None]:
    """One mix, with one kernel a region."""
    yield from first_mix(bench, best, most=1, rounds=1)


def promising(bench: Bench, best: Best) -> Generator[Plan, Verdict, None]:
    """All variants on the regions that usually win: they cover the model, and the best mix seldom needs others.

    The model is placed again after each part of them. Compilers' kernels come last: they are built meanwhile. Kernels
    that are known to be far from the fastest have to wait.
    """
    offered = _requests(promising_of(bench))
    requests = [each for each in offered if bench.measurer.expected_loss(each) < _HOPELESS]
    compilers = {name for name, each in bench.task.backends.items() if each.kind is BackendKind.COMPILER}
    compiled = [each for each in requests if each.backend in compilers]
    bench.measurer.build_ahead(compiled)
    bench.race([each for each in requests if each.backend not in compilers], mix_of(best))
    yield from calibrated(bench, best, rounds=1)
    half = len(compiled) // 2
    for part in (compiled[:half], compiled[half:]):
        bench.race(part, mix_of(best))
        yield from calibrated(bench, best, rounds=1)
    yield from calibrated(bench, best)


def calibrated(bench: Bench, best: Best, rounds: int = 3) -> Generator[Plan, Verdict, None]:
    """Place, run, correct the costs by the times in the network, and place again, until a placement has run before."""
    attempts = 0
    while rounds > 0 and attempts < _ATTEMPTS:
        plan = planned(bench, place(bench))
        if plan.alike in bench.known.ran:
            return
        verdict = yield plan
        if isinstance(verdict, Ran):
            rounds -= 1
        elif isinstance(verdict, Failed) and verdict.kernel is None:
            if bench.known.blamed is None:
                yield from _without_one_backend(bench, plan)
            return
        else:
            attempts += 1


def other_variants(bench: Bench, best: Best) -> Generator[Plan, Verdict, None]:
    """The best mix with another variant in every region at once, which shows the times in place of all of them.

    Then the model is placed once more.
    """
    mix = mix_of(best)
    if mix is None:
        return
    field = field_of(bench)
    other = others(bench.known.timed(mix).placement, field.candidates)
    if other is None:
        return
    graph = bench.model.graph
    try:
        check_placement(graph, other)
        placement = finish(graph, other, bench.known.epsilon_us, transforms_us=field.transforms_us)
    except (KeyError, ValueError) as error:
        log.info("no other variant everywhere: %s", error)
        return
    plan = planned(bench, placement)
    if plan.alike not in bench.known.ran:
        yield plan
    yield from calibrated(bench, best)


def refuse(bench: Bench) -> None:
    """Raise NoPlacementError if nothing runs a node, and ModelError if only engines do in a strict compile."""
    task, model = bench.task, bench.model
    strict = task.options.strict and not task.source.family
    taken = {
        model.graph.nodes[node].source
        for offer in bench.known.offers
        if offer.request.backend not in task.engines
        for node in offer.request.nodes
    }
    nodes = model.onnx.graph.node
    if strict and (opaque := {i: why for i, why in model.opaque.items() if i not in taken}):
        listing = "; ".join(f"{nodes[i].name} ({nodes[i].op_type}): {why}" for i, why in opaque.items())
        raise ModelError(f"strict: {len(opaque)} ONNX nodes are not converted, and only engines run them: {listing}")
    if left := uncovered(bench):
        raise NoPlacementError(why_uncovered(bench, [*left]))


def promising_of(bench: Bench) -> list[Offer]:
    """The most promising offers in the model's own dtypes (``search.promising``)."""
    offers = bench.known.offers
    done = {node for view in bench.known.views for node in view.nodes}
    found = promising_offers(offers, len(bench.model.graph.nodes), bench.task.engines, done)
    exact = [each for each in found if not each.request.variant.precision]
    if bench.task.options.tolerance:  # there are more offers than there is time for a second attempt
        exact += filling(bench.model, offers, exact, bench.known.views)
    return exact


def promising_reduced(bench: Bench, nodes: Collection[int]) -> list[CandidateRequest]:
    """The most promising requests of reduced precision on regions that share some of the nodes."""
    done = {node for view in bench.known.views for node in view.nodes}
    found = promising_offers(bench.known.offers, len(bench.model.graph.nodes), bench.task.engines, done)
    return [o.request for o in found if o.request.variant.precision and not {*nodes}.isdisjoint(o.request.nodes)]


def _requests(offers: Sequence[Offer]) -> list[CandidateRequest]:
    return [offer.request for offer in offers]


def _suffix_engines(bench: Bench) -> Generator[Plan, Verdict, None]:
    """A placement with each engine for the suffix, if the model has one; from then on that is the fastest of them.

    Engines that do not run the whole model are tried only if no other runs the suffix.
    """
    if bench.imported.suffix is None:
        return
    plan, known = planned(bench, place(bench)), bench.known
    refused = {each.engine for each in known.engines_refused} - {each.engine for each in known.engine_us}
    times_us: dict[str, float] = {}
    for engine in sorted(bench.task.engines, key=refused.__contains__):
        if engine in refused and times_us:
            break
        verdict = yield replace(plan, suffix=engine)
        if isinstance(verdict, Ran):
            times_us[engine] = verdict.us
    bench.known.suffix = min(times_us, key=times_us.__getitem__, default="")


def _without_one_backend(bench: Bench, failed: Placed) -> Generator[Plan, Verdict, None]:
    """Placements without one of the backends of a plan that fails as a whole, until one of them runs."""
    counts = Counter(c.backend for c in failed.placement.candidates for _ in c.nodes)
    names: Collection[str] = sorted(counts.keys() - {VIEW}, key=lambda name: (counts[name], name))
    for name in names:
        bench.known.blamed = name
        try:
            bench.race(wanted(bench, most=1))
            verdict = yield planned(bench, place(bench))
        except NoPlacementError:
            continue
        if isinstance(verdict, Ran):
            return
    bench.known.blamed = None
