"""The commands ``collage graphpipe plan``, ``simulate`` and ``show``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from collage.cli.graphpipe import graphpipe
from collage.errors import CollageError
from collage.graphpipe.graph import write_json
from scripts.lib.graphpipe.networks import case_study


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
    other.write_text(Path(cluster).read_text().replace("memory_gb = ", "memory_gb = 0.01 # "))
    with pytest.raises(CollageError, match="GB are missing"):
        run("plan", graph, "--cluster", str(other), "--batch", "16")


@pytest.mark.parametrize(("content", "message"), [("{", "is no JSON file"), ("{}", "this is no plan")])
def test_files_that_are_no_plans_are_refused(files: tuple[str, str, str], content: str, message: str) -> None:
    graph, cluster, plan = files
    Path(plan).write_text(content)
    with pytest.raises(CollageError, match=message):
        run("show", plan, graph, "--cluster", cluster)
