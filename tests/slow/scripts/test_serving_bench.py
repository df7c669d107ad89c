"""`scripts/bench serve`: traces, figures, the static batch, and the whole command on a tiny decoder."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from collage.serve.reference import ReferenceConfig, ReferenceRunner
from scripts.lib import ROOT
from scripts.lib.serving.process import CONTENDERS, OURS, STATIC
from scripts.lib.serving.shortest_first import static_batch
from scripts.lib.serving.trace import Arrival, Served, agreement, poisson_trace, pooled, rate_at


def test_a_trace_is_the_same_at_every_rate() -> None:
    slow, fast = (poisson_trace(200, rate, 1000, seed=3) for rate in (0.5, 5.0))
    assert [each.prompt for each in slow] == [each.prompt for each in fast]
    assert [each.at_s for each in slow] == pytest.approx([10 * each.at_s for each in fast])
    assert slow[-1].at_s / 200 == pytest.approx(2.0, rel=0.2)
    assert all(32 <= len(each.prompt) <= 512 and 1 <= each.tokens <= 128 for each in slow)
    assert {each.at_s for each in poisson_trace(5, math.inf, 10)} == {0.0}


def test_figures_of_several_runs() -> None:
    def served(at_s: float, *token_s: float) -> Served:
        return Served(Arrival((1,), len(token_s), at_s), tuple(range(len(token_s))), token_s)

    found = pooled([[served(0.0, 1.0, 2.0), served(1.0, 2.0, 4.0)], [served(0.0, 3.0, 6.0)]])
    assert found.requests_per_s == pytest.approx(3 / 10) and found.tokens_per_s == pytest.approx(6 / 10)
    assert found.latency_ms == 1500  # of 1000, 1500 and 3000
    assert found.first_ms == 1000 and found.between_ms == 2000 and found.between_p99_ms == 3000
    points = [(1.0, 10.0), (2.0, 20.0), (4.0, 60.0)]
    assert [rate_at(ms, points) for ms in (40.0, 5.0, 100.0)] == [pytest.approx(3.0), None, 4.0]


def test_agreement_ends_with_the_first_difference() -> None:
    mine = Served(Arrival((1,), 4), (5, 6, 7, 8), (1.0,) * 4)
    other = Served(Arrival((1,), 4), (5, 6, 9, 8), (1.0,) * 4)
    assert agreement([mine], [other]) == pytest.approx(2 / 3)
    assert agreement([mine], [mine]) == 1.0


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
    assert model["between"][OURS]["p99_over_median"] >= 1.0 and STATIC not in model["between"]
