"""Compiles on a machine that nobody knows, on one that is known, and on one that is known wrongly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import collage
from collage.backends.native import Native
from collage.compiler.compile import compile_model
from collage.compiler.task import CompileOptions
from collage.kernel.machine_speeds import WRITTEN_DOWN, Blocking, MachineSpeeds
from collage.kernel.target import host
from collage.measure.machine.speeds import speeds_key
from collage.measure.timing.effort import FULL
from collage.measure_db.database import Database
from collage.native.speed import can_measure
from tests.helpers.models import make_model

pytestmark = pytest.mark.skipif(
    not (Native().available() and can_measure()), reason="our own kernels cannot run here"
)
ROWS, DEPTH, COLUMNS = 32, 384, 64
DATA = np.random.default_rng(1).standard_normal((ROWS, DEPTH)).astype(np.float32)
WEIGHTS = np.random.default_rng(0).standard_normal((DEPTH, COLUMNS)).astype(np.float32)


def network() -> onnx.ModelProto:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]
    return make_model(nodes, {"x": [ROWS, DEPTH]}, {"y": [ROWS, COLUMNS]}, {"w": WEIGHTS})


def compiled(db: Path, speeds_s: float = 0.0) -> collage.CompiledModule:
    options = CompileOptions(db=db, backends=["native"], threads=2, effort=replace(FULL, speeds_s=speeds_s))
    module = compile_model(network(), options, collage.default_registry(), lambda _: None)
    np.testing.assert_allclose(module(DATA), np.maximum(DATA @ WEIGHTS, 0), atol=1e-3)
    return module


def known(db: Path) -> MachineSpeeds | None:
    with Database(db) as database:
        return speeds_key(host(2)).look_up(database)


def test_the_first_compile_measures_the_machine_and_the_next_one_nothing(tmp_path: Path) -> None:
    db = tmp_path / "db.sqlite"
    first = compiled(db, speeds_s=0.05)
    speeds = known(db)
    assert speeds is not None and speeds.measured
    second = compiled(db, speeds_s=0.05)
    assert first.report.measurements_made > 0 == second.report.measurements_made
    assert known(db) == speeds
    assert [each.nodes for each in second.program.regions] == [each.nodes for each in first.program.regions]


def test_speeds_that_are_wrong_make_other_kernels_that_are_right(tmp_path: Path) -> None:
    db = tmp_path / "db.sqlite"
    assert compiled(db).report.measurements_made > 0
    wrong = replace(
        WRITTEN_DOWN, gemm_gflops=1e4, barrier_us=900.0, blocking=Blocking(gemm_depth=128), measured=True
    )
    with Database(db) as database:
        speeds_key(host(2)).record(database, wrong)
    module = compiled(db)
    assert module.report.measurements_made > 0  # of kernels with other blocks, which are other kernels
    assert compiled(db).report.measurements_made == 0
    module.save(tmp_path / "module.collage")
    np.testing.assert_array_equal(collage.load(tmp_path / "module.collage")(DATA), module(DATA))
