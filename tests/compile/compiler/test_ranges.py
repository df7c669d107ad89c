"""The pass that finds ranges of values: when it looks, and what the offers get of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from collage.compiler.passes.match import Match
from collage.compiler.passes.ranges import Ranges
from collage.compiler.state import Compilation
from collage.frontend.subgraph import Subgraph
from collage.graph.ranges import Range
from collage.kernel.options import BuildOptions, Variant
from tests.helpers.beside import TakeAll
from tests.helpers.compiler.null import Made, NullBackend


class Curious(NullBackend):
    """Has a variant for each subgraph whose input and output have a range."""

    def sources(self, options: BuildOptions) -> Sequence[TakeAll]:
        return (TakeAll(),)

    def variants(self, subgraph: Subgraph, options: BuildOptions) -> Sequence[Variant]:
        known = all(value in subgraph.ranges for value in (*subgraph.inputs, *subgraph.outputs))
        return [Variant(split="known")] if known else []


def with_samples(made: Made) -> Compilation:
    """The compilation that a pass begins with, as if its inputs were a user's."""
    return replace(made.start, source=replace(made.start.source, samples=({},)))


def test_ranges_are_those_of_the_samples_and_reach_the_backends() -> None:
    made = Made({}, Curious("curious"), tolerance=0.05)
    found = Ranges()(made.context, with_samples(made))
    ids, graph = found.imported.onnx_values, found.imported.graph
    relu, tanh, result = (found.ranges[ids[name]] for name in "aby")
    assert relu.low == 0
    assert 2 < relu.high < 8
    assert tanh == Range(0.0, float(np.tanh(np.float32(relu.high))))
    assert 0.5 < result.low < result.high < 1
    assert {*found.ranges} == {each.id for each in graph.values if not graph.is_constant(each.id)}
    offers = Match()(made.context, found).offers
    assert {offer.request.nodes for offer in offers} == {(0,), (1,), (2,), (3,)}
    assert not Match()(made.context, made.start).offers
    assert Ranges()(made.context, with_samples(made)).ranges == found.ranges  # recalled
