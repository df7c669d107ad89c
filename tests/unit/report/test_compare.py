"""Two modules of one model compared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collage.errors import UsageError
from collage.report.compare import Comparison, compared
from collage.report.page_data import ShownModule
from tests.helpers.made_up_modules import layers, made_up

NAMES = "old", "new"


def of(one: ShownModule, other: ShownModule) -> Comparison:
    """The comparison of two modules."""
    return compared((one.report, one.program), (other.report, other.program), NAMES)


def test_differences_and_what_they_gain() -> None:
    one, other = made_up(layers(2, 6)), made_up(layers(2, 6), swap=True)
    found = of(one, other)
    assert {each.nodes for each in found.differences} == {(0,), (7,)}
    assert all(each.gained_us == pytest.approx(each.other.us) for each in found.differences)  # twice as fast
    gains = [each.gained_us for each in found.differences]
    assert gains == sorted(gains, reverse=True)
    assert of(one, one).differences == ()


def test_merged_regions_belong_together() -> None:
    one = made_up(["a", "b", "c"])
    first, second, third = one.program.regions
    merged = replace(first, nodes=(0, 1), ops=("x", "y"), outputs=second.outputs, cost_us=1.0)
    other = replace(one, program=replace(one.program, regions=(merged, third)))
    (found,) = of(one, other).differences
    assert (found.nodes, found.one.regions, found.other.regions) == ((0, 1), (0, 1), (0,))
    assert found.gained_us == pytest.approx(first.cost_us + second.cost_us - 1.0)


def test_other_graphs_have_totals_only() -> None:
    found = of(made_up(["a", "b"]), made_up(["a", "c"]))
    assert "(b)" in found.unlike and "(c)" in found.unlike
    assert not found.differences and found.totals
    assert "2 operators, and that of new 3" in of(made_up(["a", "b"]), made_up(["a", "b", "c"])).unlike


def test_other_models_are_errors() -> None:
    one = made_up(["a"])
    port = replace(one.program.inputs[0], name="z")
    other = replace(one, program=replace(one.program, inputs=(port,)))
    with pytest.raises(UsageError, match="no modules of one model"):
        of(one, other)
