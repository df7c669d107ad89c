"""What a database tells about candidates: losses of kernels of the same operators and shapes, from all models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import tvm
from collage.measure.known_losses import known_losses

from collage.graph.storage import BLOCKED
from collage.kernel.options import BuildOptions, Variant
from collage.measure.request_keys import variant_text
from collage.measure.settings import MeasureSettings
from collage.measure_db.busy import BUSY_VARIABLE
from collage.measure_db.database import Database, KernelKey
from collage.measure_db.results import Measurement, Rejection, RejectionKind, Slower

IN_BLOCKS = variant_text(Variant((BLOCKED,), (BLOCKED,)))
SETTINGS = MeasureSettings({}, {"fast": "1", "slow": "1"}, BuildOptions(threads=2), "here")


def key(digest: str, backend: str, variant: str = "") -> KernelKey:
    return KernelKey(digest, backend, "1", f"{variant}set", 2, "here", tvm.__version__)


def took(us: float) -> Measurement:
    return Measurement(us, 0.0, us, 10, 0.0)


def test_losses_are_read_from_the_rows_of_all_models(tmp_path: Path) -> None:
    with Database(tmp_path / "db.sqlite") as database:
        for number in range(5):
            digest = f"shape {number}"
            database.put(key(digest, "fast"), took(10.0), "conv2d+add")
            database.put(key(digest, "slow"), Slower(20.0 + number, 10.0, 3), "conv2d+add")
            database.put(key(digest, "slow", IN_BLOCKS), took(15.0), "conv2d+add (blocked)")
        losses = known_losses(database, SETTINGS)
        assert losses.least("conv2d+add", ("slow", "")) == pytest.approx(2.0)
        assert losses.least("conv2d+add", ("slow", IN_BLOCKS)) == pytest.approx(1.5)
        assert losses.least("conv2d+add", ("fast", "")) == pytest.approx(1.0)
        assert losses.least("add", ("slow", "")) == 1.0
        assert losses.expected("conv2d+add", ("fast", ""), 0.5) == pytest.approx(0.0)


def test_what_is_exact_loses_nothing_against_what_is_less_exact(tmp_path: Path) -> None:
    reduced = variant_text(Variant(precision="bf16"))
    with Database(tmp_path / "db.sqlite") as database:
        for number in range(5):
            database.put(key(f"shape {number}", "fast"), took(20.0), "conv2d")
            database.put(key(f"shape {number}", "fast", reduced), took(10.0), "conv2d (plain, bf16)")
            database.put(key(f"shape {number}", "slow", reduced), took(30.0), "conv2d (plain, bf16)")
        losses = known_losses(database, SETTINGS)
        assert losses.least("conv2d", ("fast", "")) == pytest.approx(1.0)
        assert losses.least("conv2d", ("slow", reduced)) == pytest.approx(3.0)


def test_only_what_was_seen_on_this_machine_with_these_libraries_counts(tmp_path: Path) -> None:
    with Database(tmp_path / "db.sqlite") as database:
        found = key("shape", "fast")
        database.put(found, took(10.0), "add")
        others = (
            replace(found, hardware="there"),
            replace(found, threads=1),
            replace(found, tvm_version="0"),
            replace(found, backend_version="2"),
        )
        for other in others:
            database.put(other, took(1.0), "add")
        database.put(key("shape", "slow"), Slower(20.0, 10.0, 0), "add")
        database.put(key("shape", "slow", IN_BLOCKS), Rejection(RejectionKind.CRASHED, "SIGSEGV"), "add")
        losses = known_losses(database, SETTINGS)
        assert losses.expected("add", ("fast", ""), 0.5) == 0.0
        assert losses.expected("add", ("slow", ""), 0.5) == 0.5


def test_what_a_busy_machine_disturbed_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(BUSY_VARIABLE)
    with Database(tmp_path / "db.sqlite") as database:
        for number in range(5):
            database.put(key(f"shape {number}", "fast"), took(10.0), "add")
            database.put(key(f"shape {number}", "slow"), replace(took(90.0), busy=0.5), "add")
        assert known_losses(database, SETTINGS).least("add", ("slow", "")) == 1.0
