"""The graph level alone: an evolutionary search over made-up times of whole networks."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collage.compiler import offload_judge
from collage.compiler.events import Considered, Evolved
from collage.compiler.passes.place import Place
from collage.compiler.passes.refine import Refine
from collage.measure_db.database import Database
from tests.compiler.null import WHOLE, Costs, Made, NullBackend, each_node

LIBRARY, ENGINE = NullBackend("lib", team=True), NullBackend("engine", engine=True)
COSTS: Costs = {
    **each_node("lib", 10.0),
    **{("engine", (node,)): 14.0 for node in range(4)},
    **{
        ("engine", nodes): 11.0 * len(nodes)
        for nodes in [(0, 1), (1, 2), (2, 3), (0, 1, 2), (1, 2, 3), WHOLE]
    },
}


@pytest.fixture(autouse=True)
def every_trial_takes_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload_judge, "time", SimpleNamespace(perf_counter=itertools.count().__next__))


def made(database: Database, **options: Any) -> Made:
    found = Made(COSTS, LIBRARY, ENGINE, database=database, **options)
    found.runs.network_us = {("engine", (1, 2)): 5.0}  # what no sum shows
    return found


def test_a_region_that_is_faster_in_the_network_is_planned(tmp_path: Path) -> None:
    with Database(tmp_path / "db.sqlite") as database:
        each = made(database, graph_level_s=60.0)
        found = Refine()(each.context, Place()(each.context, each.measured()))
    (plan,) = found.plans
    assert plan.label == "graph level"
    assert ("engine", (1, 2)) in [(c.backend, c.nodes) for c in plan.placement.candidates]
    (evolved,) = [event.report for event in found.log if isinstance(event, Evolved)]
    assert evolved.times == pytest.approx(25.0 / 40.0, abs=1e-3)
    assert "evolve" in {progress.stage for progress in each.shown}


def test_regions_that_were_not_measured_before_are_told_of(tmp_path: Path) -> None:
    with Database(tmp_path / "db.sqlite") as database:
        each = made(database, graph_level_s=60.0)
        start = each.measured()
        known = {o.request for o in start.offers if len(o.request.nodes) == 1}
        offers = tuple(o for o in start.offers if o.request in known)
        start = replace(start, offers=offers, outcomes=each.measurer.known(known))
        found = Refine()(each.context, Place(rounds=1)(each.context, start))
    told = {event.request.nodes: event.purpose for event in found.log if isinstance(event, Considered)}
    assert told[(1, 2)] == "graph level"


def test_at_op_level_nothing_is_tried(tmp_path: Path) -> None:
    with Database(tmp_path / "db.sqlite") as database:
        each = made(database)
        start = Place()(each.context, each.measured())
        assert Refine()(each.context, start) is start
