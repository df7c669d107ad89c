"""Collage's own kernels, for work at which operator libraries are slow, such as grouped convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from collage.backends.base import Availability, Backend, BackendKind, UnsupportedError
from collage.kernel.kernel import Kernel
from collage.kernel.options import BuildOptions, Variant
from collage.native.kernel_library import REVISION, kernels_problem
from collage.native.library import core_problem

if TYPE_CHECKING:
    from collage.frontend.subgraph import Subgraph
    from collage.kernel.frames import Artifact
    from collage.patterns.match import MatchSource


class Native(Backend):
    """Kernels in C++ for AVX-512 and AVX2 on Collage's team, mostly with channels innermost.

    With AVX2 weights may be stored as bfloat16 or in 8 bits; data in fewer bits than float32 needs AVX-512.
    """

    name = "native"
    kind = BackendKind.LIBRARY
    worker_imports = ("collage.backends.native_kernels.algorithms",)

    def available(self) -> Availability:
        """The revision of the kernels, or why they cannot run here."""
        problem = core_problem() or kernels_problem()
        return Availability(reason=problem) if problem else Availability(version=f"kernels {REVISION}")

    def misfit(self, version: str, same_cpu: bool) -> str:
        """Kernels of this revision run on any CPU that has what they need, as ``load`` finds out."""
        return super().misfit(version, True)

    def sources(self, options: BuildOptions) -> Sequence[MatchSource]:
        """The rule that finds operators with their epilogues."""
        from collage.backends.native_kernels.algorithms import NativeRule

        return (NativeRule(direct=options.direct, precisions=options.precisions),)

    def on_team(self) -> bool:
        """Native kernels always run on the team."""
        return True

    def variants(self, subgraph: Subgraph, options: BuildOptions) -> Sequence[Variant]:
        """The variants of all algorithms. There are none for a subgraph that no algorithm takes."""
        from collage.backends.native_kernels.algorithms import offers

        try:
            return tuple(offers(subgraph, options))
        except UnsupportedError:
            return ()

    def reassociates(self, subgraph: Subgraph, variant: Variant) -> bool:
        """Whether the algorithm is Winograd's, which the variant's words for the split name."""
        from collage.backends.native_kernels.algorithms import reassociates

        return reassociates(variant)

    def codegen(self, subgraph: Subgraph, options: BuildOptions) -> bytes:
        """An artifact with the kernel's numbers and its packed weights."""
        from collage.backends.native_kernels.algorithms import offers
        from collage.native.packed import to_bytes

        algorithm = offers(subgraph, options).get(options.variant)
        if algorithm is None:
            raise UnsupportedError(f"there is no kernel for the variant {options.variant}")
        return to_bytes(algorithm.name, algorithm.pack(algorithm.task(subgraph), options))

    def load(self, artifact: Artifact, options: BuildOptions) -> Kernel:
        """The kernel on its weights."""
        from collage.backends.native_kernels.algorithms import named
        from collage.native.packed import from_artifact

        name, packed = from_artifact(artifact)
        return named(name).load(packed, options.threads)
