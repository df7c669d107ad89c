"""The commands ``collage graphpipe plan``, ``simulate`` and ``show``."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest
from click.testing import CliRunner

from collage.cli.graphpipe import graphpipe
from collage.core.threads import in_thread
from collage.errors import CollageError, UsageError
from collage.graphpipe import planned
from collage.graphpipe.baselines import pipedream
from collage.graphpipe.costs import Costs
from collage.graphpipe.graph import BlockGraph, read_json, write_json
from collage.graphpipe.planner import Options
from scripts.lib.graphpipe.networks import Device, candle, case_study


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str, str]:
    """A graph, a cluster, and the path of a plan."""
    costs = case_study(16)
    write_json(tmp_path / "graph.json", costs.graph.to_json())
    memory = costs.cluster.memory_bytes / 1e9
    text = f"devices = 4\nmemory_gb = {2 * memory}\n[inner]\nlatency_us = 10\nbandwidth_gb_s = 45\n"
    (tmp_path / "cluster.toml").write_text(text)
    return str(tmp_path / "graph.json"), str(tmp_path / "cluster.toml"), str(tmp_path / "plan.json")


def run(*arguments: str) -> str:
    result = CliRunner().invoke(graphpipe, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_plan_is_made_simulated_and_shown(files: tuple[str, str, str], tmp_path: Path) -> None:
    graph, cluster, plan = files
    made = json.loads(run("plan", graph, "--cluster", cluster, "--batch", "16", "-o", plan, "--compare", "--json"))
    assert made["plan"] == json.loads(Path(plan).read_text())
    assert made["chain"]["iteration_s"] >= made["iteration_s"] > 0
    assert made["cores"] == []
    found = json.loads(run("simulate", plan, graph, "--cluster", cluster, "--json"))
    assert found["iteration_s"] == made["iteration_s"]
    assert len(found["stages"]) == len(made["plan"]["stages"])
    greedy = json.loads(run("simulate", plan, graph, "--cluster", cluster, "--greedy", "--json"))
    assert greedy["iteration_s"] <= found["iteration_s"] * (1 + 1e-6)
    text = run("show", plan, graph, "--cluster", cluster, "--svg", str(tmp_path / "pictures"))
    assert "1F1B" in text
    assert sorted(each.name for each in (tmp_path / "pictures").iterdir()) == ["stages.svg", "timeline.svg"]
    assert "samples/s" in run("plan", graph, "--cluster", cluster, "--batch", "16", "--planner", "pipedream")


def test_a_plan_for_another_cluster_is_refused(files: tuple[str, str, str], tmp_path: Path) -> None:
    graph, cluster, plan = files
    run("plan", graph, "--cluster", cluster, "--batch", "16", "-o", plan)
    other = tmp_path / "other.toml"
    other.write_text(Path(cluster).read_text().replace("devices = 4", "devices = 1"))
    with pytest.raises(CollageError, match="C3: a device is in two stages, or not in the cluster"):
        run("simulate", plan, graph, "--cluster", str(other))
    other.write_text(Path(cluster).read_text().replace("memory_gb = ", "memory_gb = 0.00001 # "))
    with pytest.raises(CollageError, match=r"memory: stage 0 needs .* GB of a device's 1e-05 GB"):
        run("simulate", plan, graph, "--cluster", str(other))
    with pytest.raises(UsageError, match=r"give MODEL.py:function or --sleep, not both\."):
        run("run", plan, "model.py:build", "--sleep", "--graph", graph)
    other.write_text(Path(cluster).read_text().replace("memory_gb = ", "memory_gb = 0.01 # "))
    with pytest.raises(CollageError, match="GB are missing"):
        run("plan", graph, "--cluster", str(other), "--batch", "16")


@pytest.mark.parametrize(("content", "message"), [("{", "is no JSON file"), ("{}", "this is no plan")])
def test_files_that_are_no_plans_are_refused(files: tuple[str, str, str], content: str, message: str) -> None:
    graph, cluster, plan = files
    Path(plan).write_text(content)
    with pytest.raises(CollageError, match=message):
        run("show", plan, graph, "--cluster", cluster)


def test_a_notebook_shows_a_plan(files: tuple[str, str, str]) -> None:
    graph_file, cluster, plan_file = files
    graph = BlockGraph.from_json(read_json(Path(graph_file)))
    found = planned(graph, cluster, 16)
    chain = planned(graph, cluster, 16, planner="pipedream")
    assert 0 < found.iteration_s <= chain.iteration_s
    found.save(plan_file)
    assert json.loads(Path(plan_file).read_text()) == found.plan.to_json()
    html = found._repr_html_()
    assert html.count("<svg") == html.count("</svg>") == 2
    assert html.count("<tr>") == len(found.plan.stages) + 1
    assert repr(found).endswith(f"at depth {found.plan.depth}.")
    with pytest.raises(UsageError, match="pipedream"):
        planned(graph, cluster, 16, planner="pipedraem")


def test_a_search_is_cut_off_and_says_so(files: tuple[str, str, str]) -> None:
    graph, cluster, plan = files
    text = run("plan", graph, "--cluster", cluster, "--batch", "16", "--seconds", "0.02", "-o", plan)
    assert "the best plan within 0.02 s; --seconds gives" in " ".join(text.split())
    with pytest.raises(CollageError, match=r"1000003 samples can only be cut into micro-batches of 1:"):
        run("plan", graph, "--cluster", cluster, "--batch", "1000003")


def test_an_odd_mini_batch_is_remarked_on(files: tuple[str, str, str]) -> None:
    graph, cluster, _ = files
    words = ("plan", graph, "--cluster", cluster, "--batch")
    text = " ".join(run(*words, "17").split())
    assert "powers of 2 that divide the mini-batch: those of 17 have 1 sample, which take " in text
    assert " ms each; --batch 24 takes " in text
    assert "powers of 2" not in run(*words, "16")


def test_ctrl_c_ends_a_search_at_once() -> None:
    """The compiled search looks at a flag."""
    costs = candle(Device(), 4096, 16)
    problem = Costs(costs, Device().cluster(32), 32768)

    def interrupt() -> None:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    started = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        pipedream(problem, Options())  # a minute otherwise
    assert time.perf_counter() - started < 10


def test_a_search_keeps_its_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that goes on for a moment after Ctrl-C reads no memory that its caller has given back."""
    going: list[Future[object]] = []

    def started(work: Callable[[], object]) -> Future[object]:
        going.append(in_thread(work))
        raise KeyboardInterrupt

    monkeypatch.setattr("collage.native.pipeline_walk.in_thread", started)
    for _ in range(10):
        with pytest.raises(KeyboardInterrupt):
            pipedream(Costs(candle(Device(), 4096, 16), Device().cluster(32), 32768), Options())
    assert {type(each.result(60)) for each in going} == {int}


@pytest.mark.parametrize(
    ("what", "changed", "message"),
    [
        ("plan", {"stages": []}, "plan.json: .*above 0"),
        ("plan", {"mini_batch": 0}, "plan.json: .*above 0"),
        ("plan", {"format": "other"}, "plan.json: this is no plan"),
        ("graph", {"state_factor": -1}, "graph.json: .*state factor"),
        ("graph", {"blocks": []}, "graph.json: "),
        ("cluster", {"devices": 2.5}, "whole number"),
        ("cluster", {"devices": "true"}, "whole number"),
        ("cluster", {"devices": "1e400"}, "cluster.toml"),
        ("cluster", {"speed": 3}, "speed"),
    ],
)
def test_files_with_mistakes_are_named(
    files: tuple[str, str, str], what: str, changed: dict[str, object], message: str
) -> None:
    graph, cluster, plan = files
    run("plan", graph, "--cluster", cluster, "--batch", "16", "-o", plan)
    if what == "cluster":
        text = Path(cluster).read_text()
        (key, value), *_ = changed.items()
        text = text.replace("devices = 4", f"devices = {value}") if key == "devices" else f"{key} = {value}\n{text}"
        Path(cluster).write_text(text)
    else:
        file = Path({"plan": plan, "graph": graph}[what])
        file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    with pytest.raises(CollageError, match=message):
        run("simulate", plan, graph, "--cluster", cluster)


def test_a_plan_for_another_network_is_refused(files: tuple[str, str, str]) -> None:
    graph, cluster, plan = files
    run("plan", graph, "--cluster", cluster, "--batch", "16", "-o", plan)
    value = json.loads(Path(graph).read_text())
    value["blocks"][1]["name"] = "other"
    Path(graph).write_text(json.dumps(value))
    given = (plan, graph, "--cluster", cluster)
    for words in (("simulate", *given), ("show", *given), ("run", plan, "--sleep", "--graph", graph)):
        with pytest.raises(
            UsageError, match=r"the plan is for another network: its block 1 is .*, and here it is other\."
        ):
            run(*words)
    old = json.loads(Path(plan).read_text())
    del old["network"]
    Path(plan).write_text(json.dumps(old))
    assert "samples/s" in run("simulate", *given)


def test_a_schedule_of_no_passes_is_refused(files: tuple[str, str, str]) -> None:
    graph, cluster, plan = files
    made = json.loads(run("plan", graph, "--cluster", cluster, "--batch", "16", "-o", plan, "--json"))["plan"]
    made["stages"][0]["k"] = 0
    Path(plan).write_text(json.dumps(made))
    with pytest.raises(CollageError, match="above 0"):
        run("simulate", plan, graph, "--cluster", cluster)
