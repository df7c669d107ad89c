"""The graph level with made-up times: an engine gains in the network what a sum over kernels does not show."""

from __future__ import annotations

from typing import Any

import pytest

from collage.compiler.propose.evolve import evolve
from collage.compiler.propose.mixes import calibrated
from collage.report.report import GraphLevelReport
from tests.helpers.compiler.null import Made, NullBackend, NullEngine, each_node, regions


def made(**options: Any) -> Made:
    """Alone the library is fastest everywhere; in the network the engine takes next to nothing for nodes 1 and 2."""
    parts = {("engine", (1, 2)): 21.0, ("engine", (0, 1)): 21.0, ("engine", (2, 3)): 21.0}
    more = {("engine", (0, 1, 2)): 31.0, ("engine", (1, 2, 3)): 31.0, ("engine", (0, 1, 2, 3)): 41.0}
    costs = {**each_node("lib", 10.0), **each_node("engine", 11.0), **parts, **more}
    each = Made(costs, NullBackend("lib", team=True), NullEngine("engine"), graph_level_s=0.5, **options)
    each.runs.network_us = {("engine", (1, 2)): 2.0}
    return each.measured().run(calibrated)


def reported(each: Made) -> GraphLevelReport:
    found = each.bench.known.graph_level
    assert found is not None
    return found


def test_the_best_offload_is_run_as_a_plan() -> None:
    each = made()
    assert [name for name, _ in regions(each.placed[0])] == ["lib"] * 4
    each.run(evolve)
    assert ("engine", (1, 2)) in regions(each.placed[0])
    found = reported(each)
    assert found.trials > 1 and found.times < 1


def test_a_mix_that_fails_meanwhile_ends_the_row_and_a_trial_that_fails_only_itself() -> None:
    each = made()
    each.runs.worn_out = {("engine", (1, 2)): "turn"}
    each.run(evolve)
    assert [name for name, _ in regions(each.placed[0])] == ["lib"] * 4
    assert reported(each).trials > 1
    each = made()
    each.runs.worn_out = {("lib", (0,)): "turn"}
    each.run(evolve)
    assert each.placed == []


@pytest.mark.parametrize("ended", [True, False])
def test_ctrl_c_keeps_the_best_so_far(ended: bool) -> None:
    usual = made()
    before = len(usual.step.taken)
    usual.run(evolve)
    trials = len(usual.step.taken) - before
    each = made()
    each.step.at = before + (trials - 4 if ended else trials // 2)
    with pytest.raises(KeyboardInterrupt):
        each.run(evolve)
    assert each.placed
