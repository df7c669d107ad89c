"""The graph level with real engines: what it does to a compile, its database, Ctrl-C, and a second compile."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnxruntime as ort
import pytest

import collage
from collage.backends.openvino import OpenVino
from collage.compiler.compile import compile_model
from collage.compiler.plan import Placed, Plan
from collage.compiler.propose import evolve
from collage.compiler.task import CompileOptions
from collage.core.progress import Progress
from collage.errors import UsageError
from collage.measure_db.database import Database
from collage.search.evolution import Cost
from tests.helpers.models import conv_net, elementwise_net
from tests.helpers.preferred import preferred

BACKENDS = ["tvm", "onednn", "onnxruntime", *(["openvino"] if OpenVino().available() else [])]


def compiled(
    db: Path,
    progress: Callable[[Progress], None] = lambda _: None,
    search_s: float = 8.0,
    backends: Sequence[str] = BACKENDS,
) -> collage.CompiledModule:
    options = CompileOptions(db=db, backends=backends, graph_level_s=search_s)
    return compile_model(conv_net(), options, collage.default_registry(), progress)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("db") / "db.sqlite"


@pytest.fixture(scope="module", autouse=True)
def every_trial_runs_and_takes_a_second() -> Iterator[None]:
    """So that the time of the search is a number of trials, however busy the machine is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evolve, "_HOPELESS", math.inf)
        patch.setattr(evolve, "time", SimpleNamespace(perf_counter=count().__next__))
        yield


@pytest.fixture(scope="module")
def module(database: Path) -> collage.CompiledModule:
    return compiled(database)


def test_the_report_says_how_the_search_went(module: collage.CompiledModule) -> None:
    found = module.summary()["graph_level"]
    assert found["trials"] >= 4
    assert found["genes"] >= 2
    assert found["history"][0] == (0.0, 1.0)
    assert found["times"] == found["history"][-1][1] <= 1.0
    tried = [c for node in module.summary()["nodes"] for c in node["candidates"] if c["pattern"] == "graph level"]
    assert tried


def test_a_second_compile_repeats_it_without_a_measurement(module: collage.CompiledModule, database: Path) -> None:
    again = compiled(database)
    assert again.report.measurements_made == 0
    assert again.report.graph_level == module.report.graph_level
    assert [r.nodes for r in again.program.regions] == [r.nodes for r in module.program.regions]


def test_a_longer_search_goes_on_from_there(module: collage.CompiledModule, database: Path) -> None:
    assert module.report.graph_level is not None
    more = compiled(database, search_s=11.0)
    assert more.report.graph_level is not None
    assert more.report.graph_level.trials > module.report.graph_level.trials
    with Database(database) as known:
        assert known.stats().networks > 2


def test_ctrl_c_keeps_the_best_and_finishes(tmp_path: Path) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.stage == "evolve" and " 2 placements" in progress.text:
            raise KeyboardInterrupt

    module = compiled(tmp_path / "db.sqlite", interrupt)
    assert module.report.graph_level is not None
    assert module.report.graph_level.ended == "interrupted"
    assert module.report.graph_level.trials == 2
    assert module.report.ended == "interrupt"
    x = np.random.default_rng(0).standard_normal((1, 3, 16, 16)).astype(np.float32)
    assert module(x).shape == (1, 10)


def on_ort(plan: Plan) -> int:
    """The number of regions that ONNX Runtime has in a placement."""
    return isinstance(plan, Placed) and [c.backend for c in plan.placement.candidates].count("onnxruntime")


def test_what_wins_is_handed_over_with_the_right_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole networks timed as if two regions of ONNX Runtime were what the machine likes best."""
    like = tmp_path / "db.sqlite"

    def costs(self: evolve.OffloadJudge, plans: Sequence[Placed], *_: object) -> dict[Placed, Cost]:
        us = {plan: 50.0 if on_ort(plan) == 2 else 100.0 + len(plan.placement.candidates) for plan in plans}
        return {plan: Cost(us[plan] / us[plans[0]], 0.0) for plan in plans}

    monkeypatch.setattr(evolve.OffloadJudge, "_costs", costs)
    with preferred(lambda plan: on_ort(plan) == 2):
        module = compiled(like, search_s=60.0, backends=["tvm", "onednn", "onnxruntime"])
    assert [r.backend for r in module.program.launches].count("onnxruntime") == 2
    assert module.report.graph_level is not None and module.report.graph_level.times < 0.6
    session = ort.InferenceSession(conv_net().SerializeToString(), providers=["CPUExecutionProvider"])
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((1, 3, 16, 16)).astype(np.float32)
        (expected,) = session.run(None, {"x": x})
        np.testing.assert_allclose(module(x), expected, atol=1e-4 * np.abs(expected).max())
    for node in module.summary()["nodes"]:
        assert [c["verdict"] for c in node["candidates"]].count("chosen") == 1
    module.save(tmp_path / "net.collage")
    assert collage.load(tmp_path / "net.collage").report == module.report


def test_levels_and_budgets_that_make_no_sense() -> None:
    with pytest.raises(UsageError, match=r"unknown level: kernel\. Valid: graph, op"):
        collage.compile(elementwise_net(), level="kernel", progress=False)
    with pytest.raises(UsageError, match="more than 0"):
        collage.compile(elementwise_net(), level="graph", budget_s=0.0, progress=False)
    with pytest.raises(UsageError, match="above 0"):
        collage.compile(elementwise_net(), time_limit_s=math.inf, progress=False)
