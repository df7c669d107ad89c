"""The algorithms, and which of them takes a subgraph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from collage.backends.base import NOT_EXACT, UnsupportedError
from collage.backends.chains.chain import Chain, read_chain
from collage.backends.native_kernels.algorithm import Algorithm
from collage.backends.native_kernels.direct import DirectConv
from collage.backends.native_kernels.gemm import Gemm
from collage.backends.native_kernels.narrow import NarrowTransposed
from collage.backends.native_kernels.shallow import ShallowConv
from collage.backends.native_kernels.strassen import StrassenConv, StrassenGemm
from collage.backends.native_kernels.winograd import TransposedWinograd, Winograd
from collage.errors import unknown_names
from collage.kernel.options import Variant

if TYPE_CHECKING:
    from collage.frontend.subgraph import Subgraph

ALGORITHMS: tuple[Algorithm, ...] = (
    DirectConv(),
    Winograd(),
    TransposedWinograd(),
    NarrowTransposed(),
    ShallowConv(),
    StrassenConv(),
    Gemm(),
    StrassenGemm(),
)

ROOTS = frozenset().union(*(each.roots for each in ALGORITHMS))


def offers(subgraph: Subgraph, threads: int, exact: bool = False) -> dict[Variant, Algorithm]:
    """Every variant of the subgraph and whose it is, only direct ones if ``exact``.

    Raises UnsupportedError when there is none.
    """
    chain = chain_of(subgraph)
    found: dict[Variant, Algorithm] = {}
    reasons = []
    for algorithm in _of_root(chain):
        try:
            variants = (algorithm.direct_variants if exact else algorithm.variants)(chain, threads)
            if not variants:
                reasons.append(f"{algorithm.name}: {NOT_EXACT}")
            for variant in variants:
                if found.setdefault(variant, algorithm) is not algorithm:
                    raise ValueError(f"{algorithm.name} and {found[variant].name} both offer {variant}")
        except UnsupportedError as error:
            reasons.append(f"{algorithm.name}: {error}")
    if not found:
        raise UnsupportedError("; ".join(reasons))
    return found


def reassociates(variant: Variant) -> bool:
    """Whether the algorithm of a variant does; its words for the split tell (see ``Algorithm``)."""
    return any(each.reassociates(variant) for each in ALGORITHMS)


def chain_of(subgraph: Subgraph) -> Chain:
    """The subgraph as an operator and what follows it. Raises UnsupportedError when it is none."""
    root = subgraph.operators[0]
    if root.op not in ROOTS:
        raise UnsupportedError(f"there is no kernel for {root.op}")
    return read_chain(subgraph, root)


def _of_root(chain: Chain) -> Iterator[Algorithm]:
    return (each for each in ALGORITHMS if chain.root.op in each.roots)


def named(name: str) -> Algorithm:
    """The algorithm of an artifact. Raises CollageError when there is none of that name."""
    for each in ALGORITHMS:
        if each.name == name:
            return each
    raise unknown_names("algorithm", [name], [each.name for each in ALGORITHMS])
