"""The algorithms, which of them takes a subgraph, and which subgraphs they are offered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from collage.backends.base import NOT_DIRECT, UnsupportedError
from collage.backends.chains.product_rule import grown
from collage.backends.native_kernels.algorithm import Algorithm
from collage.backends.native_kernels.direct import Bf16DirectConv, DirectConv
from collage.backends.native_kernels.experts import Bf16Experts, Experts, Int8Experts
from collage.backends.native_kernels.gemm import Gemm
from collage.backends.native_kernels.lstm import LstmLayer
from collage.backends.native_kernels.narrow_transposed import NarrowTransposed
from collage.backends.native_kernels.reduced_gemm import AmxGemm, Bf16Gemm, Int8Gemm
from collage.backends.native_kernels.shallow import ShallowConv
from collage.backends.native_kernels.top_k import TopK
from collage.backends.native_kernels.winograd import TransposedWinograd, Winograd
from collage.errors import ModuleFileError, unknown_names
from collage.frontend.subgraph import Subgraph
from collage.kernel.options import BuildOptions, Variant
from collage.patterns.context import MatchContext
from collage.patterns.generator import text_of
from collage.patterns.match import Found

ALGORITHMS: tuple[Algorithm[Any], ...] = (
    DirectConv(),
    Winograd(),
    TransposedWinograd(),
    NarrowTransposed(),
    ShallowConv(),
    Gemm(),
    Bf16Gemm(),
    AmxGemm(),
    Bf16DirectConv(),
    Int8Gemm(),
    LstmLayer(),
    TopK(),
    Experts(),
    Bf16Experts(),
    Int8Experts(),
)


def offers(subgraph: Subgraph, build: BuildOptions) -> dict[Variant, Algorithm[Any]]:
    """Every variant of the subgraph and the algorithm that offers it, only direct ones if ``build.direct``.

    Those of reduced precisions are there only if ``build`` allows the precision, or names such a variant.

    Raises UnsupportedError when there is none.
    """
    root = subgraph.operators[0].op
    found: dict[Variant, Algorithm[Any]] = {}
    reasons = []
    allowed = {"", build.variant.precision, *build.precisions}
    for algorithm in (each for each in ALGORITHMS if root in each.roots):
        if algorithm.precision not in allowed:
            continue
        task = algorithm.task(subgraph)
        try:
            variants = (algorithm.direct_variants if build.direct else algorithm.variants)(task, build)
            if not variants:
                why = NOT_DIRECT if build.direct else "another algorithm has this work"
                reasons.append(f"{algorithm.name}: {why}")
            for variant in variants:
                if found.setdefault(variant, algorithm) is not algorithm:
                    raise ValueError(f"{algorithm.name} and {found[variant].name} both offer {variant}")
        except UnsupportedError as error:
            reasons.append(f"{algorithm.name}: {error}")
    if not found:
        raise UnsupportedError("; ".join(reasons) or f"there is no kernel for {root}")
    return found


def reassociates(variant: Variant) -> bool:
    """Whether the algorithm of a variant reassociates, by its words for the split (see ``Algorithm``)."""
    return any(each.reassociates(variant) for each in ALGORITHMS)


_REMOVED = ("strassen_conv", "strassen_gemm")


def named(name: str) -> Algorithm[Any]:
    """The algorithm of an artifact. Raises CollageError when there is none of that name."""
    for each in ALGORITHMS:
        if each.name == name:
            return each
    if name in _REMOVED:
        raise ModuleFileError(
            "it has a kernel by Strassen's algorithm, which this Collage does not have: compile the model again."
        )
    raise unknown_names("algorithm", [name], [each.name for each in ALGORITHMS])


@dataclass(frozen=True)
class NativeRule:
    """Finds conv, conv + bias, conv + bias + relu, ... over post-dominators, if an algorithm takes them."""

    max_nodes: int = 12
    direct: bool = False
    """Whether to find only what a direct algorithm takes."""
    precisions: frozenset[str] = frozenset()
    """Reduced precisions whose algorithms count, too."""

    def find(self, context: MatchContext) -> Iterator[Found]:
        """The operators, each with a reason if there is no kernel for it, and the chains that begin with them."""
        build = BuildOptions(reassociate=not self.direct, precisions=self.precisions)
        for seed in range(len(context.graph.nodes)):
            for nodes in ((seed,), *grown(context, seed, self.max_nodes)):
                name = f"{type(self).__name__}: {text_of(context, nodes)}"
                try:
                    offers(Subgraph(context.model, nodes), build)
                    yield Found(nodes, name)
                except UnsupportedError as error:
                    if len(nodes) == 1:
                        yield Found(nodes, name, str(error))
                        break
