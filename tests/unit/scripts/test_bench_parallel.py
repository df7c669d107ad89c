"""`scripts/bench parallel`: the study on a tiny decoder with real processes, and the model that it ends with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from collage.serve.attention import Heads
from scripts.lib.bench.main import main
from scripts.lib.parallel.costs import Costs, crossover, modelled_ms
from scripts.lib.parallel.wire import Wire

HEADS = Heads(8, 8, 64, 0, False, 0.125)
COSTS = Costs({1: 10.0, 2: 12.0, 4: 16.0}, 2.0, Wire(50.0, 0.001), HEADS, 6, 512)


def test_the_study_on_a_tiny_decoder(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is missing: pip install '.[parallel]'")
    options = ["--folder", str(tmp_path), "--db", str(tmp_path / "db.sqlite"), "--rounds", "2"]
    done = CliRunner().invoke(
        main,
        ["parallel", "tiny", "--cached", "40,500", "--batch", "2", "--processes", "2", *options, "--json"],
    )
    assert not done.exit_code, done.output
    (found,) = json.loads(done.stdout)["results"]
    assert [row["cached"] for row in found["rows"]] == [40, 500]
    for row in found["rows"]:
        assert row["cache_2_bytes"] == row["cache_2_derived_bytes"] > 0
        assert 0 <= row["cache_2_error"] < 1e-5
        assert row["tensor_2_bytes"] == row["tensor_2_derived_bytes"] > 0
        assert 0 <= row["tensor_2_error"] < 1e-4
        assert all(row[f"{kind}_ms"] > 0 for kind in ("one", "data", "tensor", "cache", "pipeline"))
    assert {each["kind"] for each in found["modelled"]} == {"data", "tensor", "cache"}


def test_what_the_model_says() -> None:
    """One sequence is divided by Cache Parallelism only, and messages are what it costs."""
    assert modelled_ms(COSTS, "data", 4, 1, 1000) == modelled_ms(COSTS, "data", 1, 1, 1000) == 12.0
    few = modelled_ms(COSTS, "cache", 4, 1, 0)
    assert few > modelled_ms(COSTS, "data", 4, 1, 0)
    assert modelled_ms(COSTS, "cache", 4, 1, 1000) == pytest.approx(few + 0.5)
    at = crossover(COSTS, "data", 4, 1, 100_000)
    assert at is not None and at % 32 == 0
    assert modelled_ms(COSTS, "cache", 4, 1, at) < modelled_ms(COSTS, "data", 4, 1, at)
    assert modelled_ms(COSTS, "cache", 4, 1, at - 32) >= modelled_ms(COSTS, "data", 4, 1, at - 32)
    assert crossover(COSTS, "data", 2, 2, 100_000) is None  # equal sequences need no sharing
    assert modelled_ms(COSTS, "tensor", 4, 1, 0) == pytest.approx(2.5 + 6 * 4 * 0.050, abs=0.2)
