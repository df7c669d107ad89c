"""From a file with a network to processes that train it, by the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from collage.cli.graphpipe import graphpipe
from collage.errors import UsageError

pytest.importorskip("torch")

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.head = (nn.Linear(32, 32) for _ in range(3))

    def forward(self, x, z):
        return (self.head(self.left(x) + self.right(z)) - x).square().mean()

def build():
    def batch(step, samples):
        random = torch.Generator().manual_seed(step)
        return torch.randn(samples, 32, generator=random), torch.randn(samples, 32, generator=random)
    return Net(), batch
"""


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "collage", "graphpipe", *words]
    root = Path(__file__).resolve().parents[3]
    env = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def here(*words: str) -> str:
    result = CliRunner().invoke(graphpipe, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def run(folder: Path, *words: str) -> str:
    process = start(folder, *words)
    out, err = process.communicate(timeout=150)
    assert process.returncode == 0, err
    return out


def test_a_network_is_profiled_planned_and_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    assert "wrote graph.json" in here("profile", "model.py:build", "-o", "graph.json", "--most", "4")
    assert "bandwidth_gb_s" in run(tmp_path, "cluster", "--devices", "2", "-o", "cluster.toml")
    given = ("--cluster", "cluster.toml")
    here("plan", "graph.json", *given, "--batch", "8", "-o", "plan.json")
    _two_stages(tmp_path / "plan.json", tmp_path / "graph.json")
    words = (
        "--steps",
        "5",
        "--graph",
        "graph.json",
        *given,
        "--checkpoint",
        "kept",
        "--resume",
        "--json",
        "--clip-norm",
        "1",
    )
    found = json.loads(run(tmp_path, "run", "plan.json", "model.py:build", *words))
    assert (tmp_path / "kept" / "last.json").exists()
    assert len(found["losses"]) == 5
    assert found["iteration_s"] > 0 < found["predicted_s"]
    process = start(tmp_path, "run", "plan.json", "--sleep", "--graph", "graph.json", "--steps", "1000", "--limit", "5")
    end = time.monotonic() + 60
    while len(_children(process.pid)) < 2 and time.monotonic() < end:
        time.sleep(0.1)
    os.kill(_children(process.pid)[1], signal.SIGKILL)
    _, err = process.communicate(timeout=150)
    assert process.returncode == 1
    lines = err.splitlines()
    assert lines[-1] == "collage: error: rank 1 was ended by SIGKILL, and the run with it."
    assert len(lines) <= 2
    with pytest.raises(UsageError, match="kept has a checkpoint: --resume goes on from it"):
        here("run", "plan.json", "model.py:build", "--checkpoint", "kept")
    for words in (("plan.json",), ("plan.json", "m.py:build", "--resume"), ("plan.json", "--sleep"), CLIPPED):
        with pytest.raises(UsageError, match="--"):
            here("run", *words)


CLIPPED = ("plan.json", "--sleep", "--graph", "graph.json", "--clip-norm", "1")

CHAIN = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x, y):
        for each in self.layers:
            x = each(x).tanh()
        return nn.functional.cross_entropy(x, y)

def build():
    def batch(step, samples):
        random = torch.Generator().manual_seed(step)
        return torch.randn(samples, 8, generator=random), torch.randint(0, 8, (samples,), generator=random)
    return Net(), batch, lambda parameters: torch.optim.Adam(parameters, 1e-2)
"""


def test_a_chain_has_the_same_losses_on_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "chain.py").write_text(CHAIN)
    monkeypatch.chdir(tmp_path)
    here("profile", "chain.py:build", "-o", "graph.json", "--most", "4", "--runs", "1")
    count = len(json.loads((tmp_path / "graph.json").read_text())["blocks"])
    plan: Any = {"format": "collage pipeline plan 1", "planner": "none", "mini_batch": 8, "edges": [[0, 1]]}
    halves = (range(count // 2), range(count // 2, count))
    plan["stages"] = [
        {"blocks": [*part], "micro_batch": 2, "devices": [at], "k": 1, "in_flight": 4} for at, part in enumerate(halves)
    ]
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    ours, torchs = (
        json.loads(run(tmp_path, "run", "plan.json", "chain.py:build", "--steps", "5", "--json", *words))["losses"]
        for words in ((), ("--torch",))
    )
    assert len(ours) == 5
    assert ours == pytest.approx(torchs, abs=1e-6)
    plan["stages"][1]["micro_batch"] = 4
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    (tmp_path / "bad.py").write_text("def build():\n    raise ValueError('unwell')\n")
    _, err = start(tmp_path, "run", "plan.json", "bad.py:build").communicate(timeout=150)
    assert err.splitlines() == [
        "collage: error: bad.py:build fails: ValueError: unwell (bad.py, line 2).",
        "collage: error: the run has ended, since rank 0, 1 failed.",
    ]
    _, err = start(tmp_path, "run", "plan.json", "chain.py:build", "--torch").communicate(timeout=150)
    assert "torch.distributed.pipelining cannot run the plan: its stages have different micro-batches." in err
    assert "Traceback" not in err


def test_what_goes_wrong_in_a_run_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses that are not finite, a simulation that is far off, and a damaged checkpoint."""
    model = MODEL.replace("        return torch.randn(", "        return (step < 2 or torch.nan) * torch.randn(")
    (tmp_path / "model.py").write_text(model)
    monkeypatch.chdir(tmp_path)
    here("profile", "model.py:build", "-o", "graph.json", "--most", "4", "--runs", "1")
    (tmp_path / "cluster.toml").write_text("devices = 2\nmemory_gb = 1\n[inner]\nlatency_us = 10\nbandwidth_gb_s = 1\n")
    given = ("--graph", "graph.json", "--cluster", "cluster.toml")
    here("plan", "graph.json", "--cluster", "cluster.toml", "--batch", "8", "-o", "plan.json")
    _two_stages(tmp_path / "plan.json", tmp_path / "graph.json")
    graph = json.loads((tmp_path / "graph.json").read_text())
    for block in graph["blocks"]:
        block["forward_s"] = [10.0 for _ in block["forward_s"]]
    (tmp_path / "graph.json").write_text(json.dumps(graph))
    process = start(tmp_path, "run", "plan.json", "model.py:build", "--steps", "5", "--checkpoint", "kept", *given)
    out, err = process.communicate(timeout=150)
    assert process.returncode == 0
    assert err.splitlines() == ["collage: warning: the loss of step 3 is nan; the run goes on."]
    assert "3 of 5 losses are not finite." in out
    assert "so profile on a calm machine" in out
    for text, message in (("{", "last.json is no JSON file"), ("{}", "kept is damaged: last.json names no step")):
        (tmp_path / "kept" / "last.json").write_text(text)
        process = start(tmp_path, "run", "plan.json", "model.py:build", "--checkpoint", "kept", "--resume")
        lines = process.communicate(timeout=150)[1].splitlines()
        assert len(lines) == 2, lines
        assert message in lines[0]
        assert lines[1] == "collage: error: the run has ended, since rank 0, 1 failed."


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _two_stages(plan_file: Path, graph_file: Path) -> None:
    """Whatever was planned, the processes shall have something to send."""
    graph: Any = json.loads(graph_file.read_text())
    plan = json.loads(plan_file.read_text())
    count = len(graph["blocks"])
    plan["stages"] = [
        {"blocks": [0], "micro_batch": 2, "devices": [0], "k": 1, "in_flight": 4},
        {"blocks": [*range(1, count)], "micro_batch": 4, "devices": [1], "k": 1, "in_flight": 4},
    ]
    plan["edges"] = [[0, 1]]
    plan_file.write_text(json.dumps(plan))
