"""cuDNN for NVIDIA GPUs, by its graph interface: convolutions with what follows them, in both formats.

Tests run it on a stand-in for the library, which checks the descriptors and computes by the definition. docs/gpu.md
tells what has run on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from collage.backends.base import UnsupportedError
from collage.backends.cuda import CudaLibrary, refuse_other_gpu
from collage.core.cuda import gpu
from collage.graph.formats import Narrow
from collage.graph.storage import CUDA, Storage, narrowed
from collage.kernel.options import BuildOptions, Variant

if TYPE_CHECKING:
    from collage.backends.cudnn_kernels.lowered import CudnnTask
    from collage.frontend.subgraph import Subgraph
    from collage.kernel.frames import Artifact
    from collage.kernel.kernel import Kernel
    from collage.patterns.match import MatchSource

_PLAN, _DIRECT = "plan ", "direct plan "
_REDUCED_PLANS = 3
"""The plans of a reduced precision that are measured."""


class Cudnn(CudaLibrary):
    """Graphs of cuDNN. Values are plain or have the channels last; float32 is computed without TF32 by default.

    Models in float16 are computed as they are, with float32 sums.
    """

    name = "cudnn"
    title = "cuDNN"
    computes = "graph"
    choices = "plans"

    def version(self) -> str:
        """The version of cuDNN, or "" where it cannot be loaded."""
        from collage.backends.cudnn_kernels.library import version

        return version()

    def read(self, subgraph: Subgraph) -> CudnnTask:
        """What cuDNN computes of the subgraph. Raises UnsupportedError where that is nothing."""
        from collage.backends.cudnn_kernels.task import task_of

        return task_of(subgraph)

    def sources(self, options: BuildOptions) -> Sequence[MatchSource]:
        """The rule that finds operators with their epilogues."""
        from collage.backends.cudnn_kernels.rule import CudnnRule

        return (CudnnRule(),)

    def variants(self, subgraph: Subgraph, options: BuildOptions) -> Sequence[Variant]:
        """Each format and precision, with the heuristic's first plans. There are none for what it does not take."""
        try:
            task = self.read(subgraph)
        except UnsupportedError:
            return ()
        return list(self._variants(subgraph, task, options))

    def reassociates(self, subgraph: Subgraph, variant: Variant) -> bool:
        """Whether a plan may use Winograd's algorithm or Fourier transforms: those of convolutions, unless direct."""
        try:
            return self.read(subgraph).transformed and not variant.split.startswith(_DIRECT)
        except UnsupportedError:  # somebody's own pattern
            return False

    def codegen(self, subgraph: Subgraph, options: BuildOptions) -> bytes:
        """The graph with the variant's plan, which the heuristic gives for the GPU that is here."""
        from collage.backends.cudnn_kernels.artifact import pack
        from collage.backends.cudnn_kernels.plans import first_plans

        variant = options.variant
        stored = variant.inputs[0].format
        wide = stored.wide if isinstance(stored, Narrow) else stored
        direct = variant.split.startswith(_DIRECT)
        number = int(variant.split.rpartition(" ")[2])
        reason: UnsupportedError | None = None
        task = self.read(subgraph)
        precision = variant.precision or task.own
        for lowered in task.lower(wide, precision):
            try:
                plans = first_plans(lowered.graph, precision, number, direct=direct)
            except UnsupportedError as error:
                reason = error
                continue
            if plans:
                plan = self.chosen(number, plans)
                inputs = len(subgraph.inputs)
                return pack(gpu().architecture, lowered, (plan.data, plan.workspace_bytes), inputs)
        raise UnsupportedError(f"cuDNN offers no plans for this {self.computes}") from reason

    def load(self, artifact: Artifact, options: BuildOptions) -> Kernel:
        """The graph's plan, with its constants on the GPU."""
        from collage.backends.cudnn_kernels.artifact import unpack
        from collage.backends.cudnn_kernels.kernel import CudnnKernel

        found = unpack(artifact)
        refuse_other_gpu(found.architecture)
        return CudnnKernel(found)

    def _variants(self, subgraph: Subgraph, task: CudnnTask, options: BuildOptions) -> Iterator[Variant]:
        from collage.backends.cuda_kernels.precisions import is_stored_narrow

        precisions = [each for each in task.offered if not each or each in options.precisions]
        for format in task.formats:
            for precision in precisions:
                narrow = is_stored_narrow(precision)
                taken, given = (
                    narrowed(Storage(CUDA, each), precision if narrow else "")
                    for each in (format, task.output_format(format))
                )
                ends = (taken,) * len(subgraph.inputs), (given,)
                name = _DIRECT if options.direct and task.transformed else _PLAN
                for number in range(1, 1 + (_REDUCED_PLANS if precision else self.most_algorithms)):
                    yield Variant(*ends, f"{name}{number}", precision)
