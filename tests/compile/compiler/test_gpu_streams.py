"""Plans on streams of a GPU, with made-up costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from collage.compiler.passes.gpu_streams import LABEL, GpuStreams
from collage.compiler.passes.place import Place
from collage.compiler.state import Compilation
from collage.graph.storage import Storage
from collage.kernel.options import Variant
from collage.measure.worker.protocol import CandidateRequest
from collage.schedule.schedule import TEAM
from collage.search.candidates import Offer
from tests.helpers.compiler.null import Made, NullBackend, each_node, fork

GPU = Storage("cuda")


def on_gpu(storage: Storage | None = GPU, **options: Any) -> tuple[Made, Compilation]:
    """Two kernels that do not depend on each other, and one that reads what both have made; nothing is placed."""
    made = Made(each_node("lib", 10.0, 3), NullBackend("lib"), model=fork, **options)
    ends = [] if storage is None else [storage]
    requests = [
        CandidateRequest((node,), "lib", Variant(tuple(ends * inputs), tuple(ends)))
        for node, inputs in ((0, 1), (1, 1), (2, 2))
    ]
    offers = tuple(Offer(request, "pattern") for request in requests)
    return made, replace(made.start, offers=offers, outcomes=made.measurer.known(requests), epsilon_us=0.5)


def placed(storage: Storage | None = GPU, **options: Any) -> tuple[Made, Compilation]:
    """The same with a placement."""
    made, start = on_gpu(storage, **options)
    return made, Place()(made.context, start)


def test_plans_on_streams() -> None:
    made, start = placed()
    found = GpuStreams()(made.context, start)
    plans = {each.algorithm: each for each in found.plans if each.streams is not None}
    assert {"nimble", "opara"} <= plans.keys()
    for plan in plans.values():
        assert plan.label.startswith(LABEL) and plan.streams is not None
        assert plan.streams.schedule.count == 2
        program = made.lab.bench.assembler.assemble(plan, {}).program
        streams = program.ordered.schedule.streams
        on_gpu = [each for each, region in zip(streams, program.launches, strict=True) if region.nodes]
        copies = [each for each, region in zip(streams, program.launches, strict=True) if not region.nodes]
        assert sorted(set(on_gpu)) == [0, 1] and set(copies) == {TEAM}
        assert len(program.ordered.events) == 1
    again = GpuStreams()(made.context, found)
    assert [each.label for each in again.plans] == [each.label for each in found.plans]
