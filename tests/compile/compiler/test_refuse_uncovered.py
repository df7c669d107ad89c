"""A family with a node that nothing runs is refused before anything is measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collage.compiler.passes.refuse_uncovered import RefuseUncovered
from collage.compiler.state import Compilation
from collage.errors import NoPlacementError
from tests.helpers.compiler.null import Made, NullBackend, each_node


def of_family(made: Made, *, without: int | None = None) -> Compilation:
    """What is offered for a family, without what takes one of its nodes."""
    found = made.measured()
    offers = tuple(each for each in found.offers if without not in each.request.nodes)
    return replace(found, offers=offers, source=replace(found.source, family=True))


@pytest.mark.parametrize("node", range(4))
def test_the_node_that_nothing_runs_is_named(node: int) -> None:
    made = Made(each_node("lib", 10.0), NullBackend("lib"))
    name = made.model.describe_node(node)
    with pytest.raises(NoPlacementError, match="no kernel of lib can run") as error:
        RefuseUncovered()(made.context, of_family(made, without=node))
    assert name in str(error.value)
