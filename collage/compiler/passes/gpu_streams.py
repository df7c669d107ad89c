"""GpuStreams: the mix with its launches on a GPU on several streams, for a comparison of plans."""

from __future__ import annotations

from dataclasses import dataclass, replace

from collage.compiler.gpu_streams import gpu_schedules
from collage.compiler.plan import Plan, StreamPlan
from collage.compiler.state import Compilation, Context
from collage.frontend.subgraph import Subgraph
from collage.graph.storage import CUDA
from collage.search.candidate import Candidate

LABEL = "GPU streams"


@dataclass(frozen=True)
class GpuStreams:
    """Adds a plan for each schedule on streams. They replace those of an earlier run of this pass."""

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Adds plans where launches on the GPU are independent. Raises KernelRejectedError."""
        mix = compilation.placed.mix or compilation.placed.placement
        if not context.options.streams or not any(map(_writes_on_gpu, mix.candidates)):
            return compilation
        bench = context.workbench(compilation)
        base = bench.assembler.assemble(Plan("mix", mix, exclusive=False), compilation.tunings)
        types = base.program.types
        moved = []
        for region, launch in zip(base.program.launches, base.launches, strict=True):
            weights = (
                Subgraph(bench.model, launch.nodes).weights.values() if isinstance(launch, Candidate) else ()
            )
            values = sum(types[each].nbytes for each in (*region.inputs, *region.outputs))
            moved.append(values + sum(each.nbytes for each in weights))
        costs = [each.cost_us for each in base.launches]
        found = gpu_schedules(base.program.ordered.dag, base.program.on_gpu, costs, moved)
        none = (None,) * len(base.launches)
        plans = [
            Plan(f"{LABEL}, {name}", mix, exclusive=False, streams=StreamPlan(schedule, none, name))
            for name, schedule in found.items()
        ]
        others = [each for each in compilation.plans if not each.label.startswith(LABEL)]
        return replace(compilation, plans=(*others, *plans))


def _writes_on_gpu(candidate: Candidate) -> bool:
    return any(storage.device == CUDA for _, storage in candidate.writes)
