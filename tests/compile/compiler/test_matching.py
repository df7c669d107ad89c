"""What a bench does with a graph before anything is measured: verification, matching, refusals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from collage.backends.base import UnsupportedError
from collage.compiler.propose.mixes import first_mix, refuse
from collage.errors import ModelError, NoPlacementError
from collage.frontend.subgraph import Subgraph
from collage.kernel.options import BuildOptions, Variant
from tests.helpers.beside import TakeAll
from tests.helpers.compiler.null import Made, NullBackend, each_node, imported


class Picky(NullBackend):
    """Takes every operator, and has variants for all but exp."""

    def sources(self, options: BuildOptions) -> Sequence[Any]:
        return (TakeAll(),)

    def variants(self, subgraph: Subgraph, options: BuildOptions) -> Sequence[Variant]:
        if "exp" in subgraph.ops:
            raise UnsupportedError("no exp today")
        return [Variant(), Variant(split="rows")]


def matched(*backends: NullBackend, wrong: dict[int, str] | None = None, **options: Any) -> Made:
    each = Made({}, *backends, **options)
    each.bench.matches = True
    each.measurer.wrong = wrong or {}
    each.bench.model  # noqa: B018  (verifies and matches)
    return each


def test_offers_are_the_variants_of_the_matches() -> None:
    each = matched(Picky("picky"))
    known = each.bench.known
    assert [m.nodes for m in known.matches if m.backend == "picky"] == [(0,), (1,), (2,), (3,)]
    offered = [(offer.request.nodes, offer.request.variant.split) for offer in known.offers]
    assert offered == [((n,), split) for n in (0, 1, 3) for split in ("", "rows")]
    (refused,) = [m for m in known.refused if m.nodes == (2,)]
    assert (refused.backend, refused.reason) == ("picky", "no exp today")
    assert known.search_s > 0


def test_nodes_that_are_converted_wrongly_become_opaque() -> None:
    each = matched(wrong={1: "differs by 0.5"})
    assert each.bench.model.opaque == {1: "differs by 0.5"}
    assert each.bench.model.graph.nodes[1].op != "tanh"
    assert imported().opaque == {}
    assert each.measurer.closed == 1  # that of the graph with the wrong node
    assert [progress.stage for progress in each.shown].count("verify") == 1


class All(Picky):
    """Takes every operator."""

    def variants(self, subgraph: Subgraph, options: BuildOptions) -> Sequence[Variant]:
        return [Variant()]


class PickyEngine(Picky):
    """Takes the same, as an engine."""

    def __init__(self, name: str) -> None:
        NullBackend.__init__(self, name, engine=True)


@pytest.mark.parametrize("more", [(), (PickyEngine("engine"),)], ids=["nobody", "an engine"])
def test_with_strict_nodes_without_a_kernel_of_a_library_are_refused(more: tuple[NullBackend, ...]) -> None:
    each = matched(*more, wrong={1: "differs by 0.5"}, strict=True)
    with pytest.raises(ModelError, match=r"strict: 1 ONNX nodes are not converted.*tanh \(Tanh\): differs"):
        each.run(first_mix)
    with pytest.raises(NoPlacementError):
        refuse(matched(*more, wrong={1: "differs by 0.5"}).bench)
    refuse(matched(All("all"), wrong={1: "differs by 0.5"}, strict=True).bench)


@pytest.mark.parametrize("node", range(4))
def test_a_family_with_a_node_that_nothing_runs_is_refused_before_anything_is_measured(node: int) -> None:
    costs = {key: us for key, us in each_node("lib", 10.0).items() if key[1] != (node,)}
    each = Made(costs, NullBackend("lib"), family=True)
    with pytest.raises(NoPlacementError, match="no kernel of lib can run") as error:
        each.compiled()
    assert each.bench.model.describe_node(node) in str(error.value)
    assert each.measurer.asked == []
