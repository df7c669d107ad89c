"""Verification alone: nodes that the importer has converted wrongly become opaque."""

from __future__ import annotations

from collage.compiler.passes.verify import Verify
from tests.helpers.compiler.null import Made


def test_a_right_import_stays() -> None:
    made = Made({})
    assert Verify()(made.context, made.start).model is made.model
    assert [each.stage for each in made.shown] == ["verify"]


def test_wrong_nodes_become_opaque() -> None:
    made = Made({})
    made.measurer.wrong = {1: "differs by 0.5"}
    found = Verify()(made.context, made.start).imported
    assert found.opaque == {1: "differs by 0.5"}
    assert found.graph.nodes[1].op != "tanh"
    assert made.model.opaque == {}
