"""`scripts/bench serve`: traces, figures, the static batch, and the whole command on a tiny decoder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from collage.serve.reference import ReferenceConfig, ReferenceRunner
from scripts.lib import ROOT
from scripts.lib.serving.process import CONTENDERS, OURS, STATIC
from scripts.lib.serving.shortest_first import static_batch
from scripts.lib.serving.trace import Arrival


def test_a_static_batch_stays_together(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = ReferenceRunner(ReferenceConfig(max_tokens=16))
    batch = [Arrival(tuple(range(length)), tokens) for length, tokens in ((7, 2), (20, 4), (12, 9))]
    alone = [static_batch(runner, [each])[0] for each in batch]
    iterations: list[int] = []
    step = runner.step
    monkeypatch.setattr(
        runner,
        "step",
        lambda slices: iterations.append(sum(len(each.token_ids) for each in slices)) or step(slices),
    )
    found = static_batch(runner, batch)
    assert found == alone and [len(each) for each in found] == [2, 4, 9]
    # Seven tokens of each; the second has 20 + 4 - 1 tokens to compute, and the third 12 + 9 - 1.
    assert iterations == [16, 5] + [3] * (20 + 4 - 1 - 7)


def test_the_whole_command_on_a_tiny_decoder(tmp_path: Path) -> None:
    """Contenders that are not installed are left out."""
    command = [
        sys.executable, str(ROOT / "scripts" / "bench"), "serve", "qwen2_like", "--quick", "--json",
        "--folder", str(tmp_path),
    ]  # fmt: skip
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert not done.returncode, done.stderr
    (model,) = json.loads(done.stdout)["models"]
    assert {*model["contenders"], *model["missing"]} == {*CONTENDERS} and not model["failed"]
    assert {OURS, STATIC} <= {*model["contenders"]}
    assert model["right"]["tokens"] > 20 and model["right"]["same_tokens"] == 1.0
    assert model["right"]["largest_gap"] == 0.0 and 0 < model["right"]["largest_error"] < 1e-3
    rows = model["trace"]
    assert all(each["same_tokens"] == 1.0 for each in rows.values())
    assert rows[OURS]["saturated"]["requests"] == 12
