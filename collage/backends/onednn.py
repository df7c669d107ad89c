"""oneDNN as an operator library: convolutions, matrix products and their epilogues, on Collage's threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from collage.backends.base import Availability, Backend, BackendKind, UnsupportedError
from collage.graph.storage import BF16, INT8
from collage.kernel.kernel import Kernel
from collage.kernel.options import BuildOptions, Variant
from collage.kernel.target import has_exact_int8_sums, reduced_precisions

if TYPE_CHECKING:
    from collage.frontend.subgraph import Subgraph
    from collage.kernel.frames import Artifact
    from collage.patterns.match import MatchSource

_KERNELS = "kernels 6"
"""This is counted up when `onednn_kernels` makes other kernels than before, for which old measurements do not hold."""


class OneDnn(Backend):
    """Each thread of the team runs a single-threaded primitive on its share; layouts and splits are variants.

    The library is found by the environment variable COLLAGE_ONEDNN, in the system, or as the wheel
    ``onednn-cpu-gomp``. It takes float32, which it may store and multiply as bfloat16, and convolutions and sums of
    values that come quantised to 8 bits. Within an error that is allowed, convolutions round float32 to 8 bits.
    """

    name = "onednn"
    kind = BackendKind.LIBRARY
    worker_imports = tuple(f"collage.backends.onednn_kernels.{each}" for each in ("int8_conv", "pack", "kernel"))

    def available(self) -> Availability:
        """The library's version, or why it cannot be used."""
        from collage.backends.onednn_kernels.library import availability

        return availability()

    def misfit(self, version: str, same_cpu: bool) -> str:
        """This version makes primitives for any CPU; ``load`` refuses reference code."""
        return super().misfit(version, True)

    def sources(self, options: BuildOptions) -> Sequence[MatchSource]:
        """The rules that find operators with their epilogues, also on values that come quantised."""
        from collage.backends.onednn_kernels.rule import OneDnnRule, QuantisedRule

        return (OneDnnRule(), QuantisedRule(exact_sums=has_exact_int8_sums()))

    def on_team(self) -> bool:
        """Kernels of oneDNN always run on the team."""
        return True

    def variants(self, subgraph: Subgraph, options: BuildOptions) -> Sequence[Variant]:
        """Layouts, splits and dtypes among which the fastest is; none for a subgraph that it does not take."""
        from collage.backends.onednn_kernels import int8_conv
        from collage.backends.onednn_kernels.roots import reduced_variants, task_of

        try:
            root, task = task_of(subgraph)
            found = root.variants(task, options.threads)
            if BF16 in options.precisions & reduced_precisions():
                found = [*found, *reduced_variants(root, task, found)]
            if INT8 in options.precisions:
                found = [*found, *int8_conv.variants(task, options.threads)]
            return tuple(found)
        except UnsupportedError:
            return ()

    def in_place(self, subgraph: Subgraph) -> Sequence[int]:
        """The input that functions of single elements begin with."""
        from collage.backends.onednn_kernels.roots import task_of

        root, task = task_of(subgraph)
        value = root.in_place(task)
        return () if value is None else (subgraph.inputs.index(value),)

    def codegen(self, subgraph: Subgraph, options: BuildOptions) -> bytes:
        """An artifact with the variant's plan and the weights, packed for each share."""
        from collage.backends.onednn_kernels import int8_conv
        from collage.backends.onednn_kernels.artifact import to_bytes
        from collage.backends.onednn_kernels.handles import OneDnnError, UnimplementedError
        from collage.backends.onednn_kernels.narrow import narrow, wide_variant
        from collage.backends.onednn_kernels.pack import pack
        from collage.backends.onednn_kernels.roots import task_of

        root, task = task_of(subgraph)
        variant, threads = options.variant, options.threads
        try:
            if variant.precision == INT8:
                return to_bytes(int8_conv.artifact_of(task, variant, threads))
            draft = root.plan(task, wide_variant(variant), threads)
            draft = narrow(draft, variant) if variant.precision else draft
            return to_bytes(pack(draft.plan, draft.arrays, threads))
        except OneDnnError as error:
            # It has some functions in float32 only, and calls the arguments of others invalid.
            if isinstance(error, UnimplementedError) or variant.precision:
                raise UnsupportedError(str(error)) from error
            raise

    def load(self, artifact: Artifact, options: BuildOptions) -> Kernel:
        """A kernel of primitives that are made for this machine."""
        from collage.backends.onednn_kernels.kernel import load

        return load(artifact, options.threads)

    def settings(self, options: BuildOptions) -> str:
        """The version of our kernels."""
        return _KERNELS
