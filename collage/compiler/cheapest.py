"""The search that a compile asks for: the cheapest placement, within its error budget where it has one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from collage.backends.base import BUILT_IN
from collage.compiler.state import Compilation, Context
from collage.errors import NoPlacementError
from collage.search.candidate import Candidate
from collage.search.dp import place
from collage.search.dp_budget import place_within
from collage.search.placement import NO_TRANSFORMS, Placement, UncoveredError
from collage.search.transforms import ValueTransform

NOISE_MARGIN = 1.0
"""The number of half-widths of its confidence interval that a candidate is charged, so that noise decides nothing."""
_NAMED = 5
"""The most nodes that an error message names; it counts the others."""


def cheapest(
    context: Context,
    compilation: Compilation,
    candidates: Sequence[Candidate],
    transforms_us: Mapping[ValueTransform, float] = NO_TRANSFORMS,
) -> Placement:
    """The cheapest placement of the candidates, with these costs of layout transforms.

    Raises NoPlacementError, and BudgetOverError where the compile has to end.
    """
    try:
        return _cheapest(context, compilation, candidates, transforms_us)
    except UncoveredError as error:
        raise NoPlacementError(why_uncovered(context, compilation, error.nodes)) from error


def _cheapest(
    context: Context,
    compilation: Compilation,
    candidates: Sequence[Candidate],
    transforms_us: Mapping[ValueTransform, float],
) -> Placement:
    check = context.course.deadline.check
    graph, epsilon_us, budget = compilation.imported.graph, compilation.epsilon_us, compilation.budget
    if budget is None:
        return place(
            graph, candidates, epsilon_us, margin=NOISE_MARGIN, transforms_us=transforms_us, check=check
        )
    return place_within(
        graph,
        candidates,
        epsilon_us,
        replace(budget, price_us=_price_us(compilation) or budget.price_us).of_candidates,
        margin=NOISE_MARGIN,
        transforms_us=transforms_us,
        check=check,
    )


def why_uncovered(context: Context, compilation: Compilation, nodes: Sequence[int]) -> str:
    """The ONNX nodes that no kernel of the backends runs, and the backends that could be allowed, too."""
    named = ", ".join(map(compilation.imported.describe_node, nodes[:_NAMED]))
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    asked = [name for name in context.backends if name not in BUILT_IN]
    others = [name for name, here in context.registry.availability().items() if here and name not in asked]
    wider = f" Allow more backends, such as {', '.join(others)}." if others else ""
    return f"no kernel of {', '.join(asked)} can run {named}{more}.{wider}"


def _price_us(compilation: Compilation) -> float:
    """What a unit of error was worth to the search that proposed the present placement; 0 where there is none."""
    return 0.0 if compilation.proposal is None else compilation.proposal.placement.price_us
