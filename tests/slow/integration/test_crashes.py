"""Compiles that are killed, and two at once with one database."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import onnx

from scripts.lib.check_crashes import Compile, check_kept, crash, recorded
from tests.helpers.models import conv_net, elementwise_net

OPTIONS = ("--backends", "onnxruntime,tvm", "--threads", "1")


def saved(model: onnx.ModelProto, path: Path) -> Path:
    onnx.save_model(model, str(path))
    return path


def test_killed_compiles_lose_nothing_and_leave_nobody_behind(tmp_path: Path) -> None:
    model = saved(conv_net(), tmp_path / "net.onnx")
    seconds = Compile(model, tmp_path / "whole", OPTIONS).finish()
    job, rng = Compile(model, tmp_path / "killed", OPTIONS), random.Random(0)
    # The first compile of all is the slowest, so that a moment in it may be after the end of another one.
    rounds = [
        crash(job, seconds * share, rng, number)
        for share, number in (
            (0.1, signal.SIGKILL),
            (0.3, signal.SIGTERM),
            (0.6, signal.SIGKILL),
            (1.0, signal.SIGHUP),
        )
    ]
    assert any(each.killed_after_s is not None for each in rounds)
    before = recorded(job.database)
    job.finish()
    after = recorded(job.database)
    check_kept(before, after, killed=True)
    job.finish()
    assert check_kept(after, recorded(job.database)) == 0


def test_two_compiles_at_once_with_one_database(tmp_path: Path) -> None:
    models = [saved(conv_net(), tmp_path / "a.onnx"), saved(elementwise_net(), tmp_path / "b.onnx")]
    jobs = [Compile(model, tmp_path / model.stem, ("--db", str(tmp_path / "db"), *OPTIONS)) for model in models]
    processes = [job.start() for job in jobs]
    for job, process in zip(jobs, processes, strict=True):
        assert process.wait(300) == 0, (job.home / "compile.txt").read_text()
    both = recorded(tmp_path / "db")
    for job in jobs:
        job.finish()
    assert check_kept(both, recorded(tmp_path / "db")) == 0
