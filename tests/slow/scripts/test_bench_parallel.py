"""`scripts/bench parallel`: the study on a tiny decoder with real processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from scripts.lib.bench.main import main


def test_the_study_on_a_tiny_decoder(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is missing: pip install 'collage-compiler[parallel]'")
    sizes = ["--cached", "40,500", "--batch", "2", "--rounds", "2"]
    options = ["--folder", str(tmp_path), "--db", str(tmp_path / "db.sqlite")]
    done = CliRunner().invoke(main, ["parallel", "tiny", *sizes, *options, "--json"])
    assert not done.exit_code, done.output
    (found,) = json.loads(done.stdout)["results"]
    assert [row["cached"] for row in found["rows"]] == [40, 500]
    for row in found["rows"]:
        assert row["cache_bytes"] == row["cache_derived_bytes"] > 0
        assert 0 <= row["cache_error"] < 1e-5
        assert row["tensor_bytes"] == row["tensor_derived_bytes"] > 0
        assert 0 <= row["tensor_error"] < 1e-4
        assert all(row[f"{kind}_ms"] > 0 for kind in ("one", "data", "tensor", "cache", "pipeline"))
