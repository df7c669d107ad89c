"""Pipelines in real processes: the same gradients and losses as in one process, and ends without others."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collage.errors import UsageError
from collage.graphpipe.cluster import Cluster, Link
from collage.graphpipe.costs import Costs
from collage.graphpipe.graph import Block, BlockGraph, Edge
from collage.graphpipe.plan import Plan, Stage, scheduled
from collage.graphpipe.simulate import simulated
from collage.graphpipe.stages import slowed
from tests.helpers.graphpipe import diamond, ended, plan_of, together

torch = pytest.importorskip("torch")

BATCH, ENDLESS = 16, 100_000
ALONE = (("stem", "left", "right", "head"), 16, 1)
FOUR = (("stem",), 2, 1), (("left",), 4, 1), (("right",), 8, 1), (("head",), 2, 1)
"""Micro-batches of 2 times, 4 times, half and a quarter of those before, and of the same size along the skip."""
TWO = (("stem", "left"), 2, 1), (("right", "head"), 4, 1)
SHARED = (("stem",), 4, 1), (("left", "right"), 8, 2), (("head",), 4, 1)
EDGES = ((0, 1), (0, 2), (1, 3), (2, 3), (0, 3))
CHAIN = ((0, 1), (1, 2), (0, 2))


@pytest.fixture(scope="module")
def names() -> tuple[str, ...]:
    return diamond().trace().names


def _train(
    folder: Path,
    plan: Plan,
    dtype: str,
    steps: int,
    momentum: bool,
    checkpoint: bool,
    limit_s: float = 60.0,
    clip_norm: float | None = None,
) -> None:
    """Train as one rank, and write losses and weights."""
    from collage.graphpipe import runtime
    from collage.graphpipe.checkpoint import Checkpoints

    training = diamond(dtype, momentum)
    kept = Checkpoints(folder / "checkpoint", 5) if checkpoint else None
    resume = kept is not None and (folder / "checkpoint" / "last.json").exists()
    stages: list[Any] = []

    class Kept(runtime.TorchStage):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            stages.append(self)

    runtime.TorchStage = Kept

    def progress(step: int, loss: float, seconds: float) -> None:
        time.sleep(0.005 if steps == ENDLESS else 0)

    found = runtime.train(training, plan, steps, limit_s, kept, resume, progress=progress, clip_norm=clip_norm)
    weights = {name: each.detach() for name, each in stages[0].weights.items()}
    torch.save((found.first_step, found.losses, weights), folder / f"found-{os.environ['RANK']}.pt")


def _found(
    folder: Path,
    plan: Plan,
    dtype: str = "float64",
    steps: int = 1,
    momentum: bool = False,
    clip_norm: float | None = None,
) -> Any:
    """Losses and weights of a training in processes of its own."""
    folder.mkdir()
    size = sum(len(each.devices) for each in plan.stages)
    statuses = ended(together(_train, size, folder, plan, dtype, steps, momentum, False, 60.0, clip_norm))
    assert statuses == [0] * size, [each.read_text() for each in folder.glob("rank-*")]
    return _read(folder, size)


def _read(folder: Path, size: int) -> Any:
    parts = [torch.load(folder / f"found-{rank}.pt") for rank in range(size)]
    assert len({losses for _, losses, _ in parts}) == 1
    return parts[0][1], {name: each for _, _, weights in parts for name, each in weights.items()}


def _one_process(
    dtype: str, steps: int, momentum: bool, clip_norm: float = float("inf")
) -> tuple[list[float], dict[str, Any]]:
    training = diamond(dtype, momentum)
    optimizer = training.optimizer([*training.module.parameters()])
    losses = []
    for step in range(steps):
        loss = training.module(*training.batch(step, BATCH))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(training.module.parameters(), clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses, _weights(training)


def _weights(training: Any) -> dict[str, Any]:
    return {name: each.detach() for name, each in training.module.named_parameters()}


@pytest.mark.parametrize(
    ("stages", "edges", "dtype", "error"),
    [
        ((ALONE,), (), "float64", 1e-10),
        (FOUR, EDGES, "float64", 1e-10),
        (FOUR, EDGES, "float32", 1e-5),
        (SHARED, CHAIN, "float64", 1e-10),
        (SHARED, CHAIN, "float32", 1e-5),
    ],
)
def test_gradients_are_those_of_one_process(
    names: tuple[str, ...], tmp_path: Path, stages: Any, edges: Any, dtype: str, error: float
) -> None:
    """A step of SGD with rate 1 shows the gradients."""
    losses, weights = _found(tmp_path / "run", plan_of(names, stages, edges, BATCH), dtype)
    wanted_losses, wanted = _one_process(dtype, 1, False)
    assert losses == pytest.approx(wanted_losses, abs=error)
    assert {*weights} == {*wanted}
    assert max(float((weights[name] - each).abs().max()) for name, each in wanted.items()) <= error
    start = _weights(diamond(dtype))
    assert all(float((weights[name] - each).abs().max()) > 100 * error for name, each in start.items())


@pytest.mark.parametrize(("stages", "edges"), [(FOUR, EDGES), (SHARED, CHAIN)])
def test_losses_are_those_of_one_process_over_50_steps(
    names: tuple[str, ...], tmp_path: Path, stages: Any, edges: Any
) -> None:
    losses, _ = _found(tmp_path / "run", plan_of(names, stages, edges, BATCH), steps=50, momentum=True)
    wanted, _ = _one_process("float64", 50, True)
    assert losses == pytest.approx(wanted, rel=1e-8)
    assert losses[-1] != pytest.approx(losses[0], rel=1e-3)


@pytest.mark.parametrize(("stages", "edges"), [(TWO, ((0, 1),)), (SHARED, CHAIN)])
@pytest.mark.parametrize("clip_norm", [0.05, 100.0])
def test_the_norm_of_all_gradients_is_clipped_as_in_one_process(
    names: tuple[str, ...], tmp_path: Path, stages: Any, edges: Any, clip_norm: float
) -> None:
    """By two stages, and by one of them on several devices, whose gradients count once."""
    losses, weights = _found(tmp_path / "run", plan_of(names, stages, edges, BATCH), steps=3, clip_norm=clip_norm)
    wanted_losses, wanted = _one_process("float64", 3, False, clip_norm)
    assert losses == pytest.approx(wanted_losses, abs=1e-10)
    assert max(float((weights[name] - each).abs().max()) for name, each in wanted.items()) <= 1e-10
    free, _ = _one_process("float64", 3, False)
    assert (losses == pytest.approx(free, rel=1e-6)) == (clip_norm > 1)


def test_the_others_end_when_a_rank_is_killed_and_training_resumes(names: tuple[str, ...], tmp_path: Path) -> None:
    plan = plan_of(names, FOUR, EDGES, BATCH)
    last = tmp_path / "checkpoint" / "last.json"
    chance = random.Random(0)
    for victim in (0, 2, 3):
        before = _text(last)
        processes = together(_train, 4, tmp_path, plan, "float64", ENDLESS, True, True)
        end = time.monotonic() + 60
        while _text(last) == before and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 1))
        os.kill(processes[victim].pid, signal.SIGKILL)
        statuses = ended(processes, 30)  # half the limit
        assert statuses == [-signal.SIGKILL if rank == victim else 1 for rank in range(4)]
        for rank in {*range(4)} - {victim}:
            lines = (tmp_path / f"rank-{rank}.txt").read_text().splitlines()
            assert len(lines) == 1, lines
            assert lines[0].startswith(f"rank {rank}: ")
    done = json.loads((tmp_path / "checkpoint" / "last.json").read_text())["step"]
    assert ended(together(_train, 4, tmp_path, plan, "float64", done + 5, True, True)) == [0] * 4
    first, losses, _ = torch.load(tmp_path / "found-0.pt")
    assert first == done > 0
    assert losses == pytest.approx(_one_process("float64", done + 5, True)[0][done:], rel=1e-6)


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_training_resumes_with_the_same_losses(names: tuple[str, ...], tmp_path: Path) -> None:
    """Also by another plan."""
    one, other = plan_of(names, FOUR, EDGES, BATCH), plan_of(names, SHARED, CHAIN, BATCH)
    wanted, _ = _one_process("float64", 20, True)
    assert ended(together(_train, 4, tmp_path, one, "float64", 8, True, True)) == [0] * 4
    assert sorted(each.name for each in (tmp_path / "checkpoint").iterdir()) == ["last.json", "step-00000008"]
    assert ended(together(_train, 4, tmp_path, one, "float64", 14, True, True)) == [0] * 4
    first, losses, _ = torch.load(tmp_path / "found-0.pt")
    assert first == 8
    assert losses == pytest.approx(wanted[8:14], rel=1e-8)
    assert ended(together(_train, 4, tmp_path, other, "float64", 20, True, True)) == [0] * 4
    assert torch.load(tmp_path / "found-0.pt")[1] == pytest.approx(wanted[14:], rel=1e-8)


def _sleep(folder: Path, plan: Plan, graph: BlockGraph) -> None:
    from collage.graphpipe import runtime

    found = runtime.sleep(graph, plan, 2, 60.0)
    torch.save(found.seconds, folder / f"found-{os.environ['RANK']}.pt")


def test_sleep_mode_takes_as_long_as_the_simulation_says(tmp_path: Path) -> None:
    """With branches, different micro-batches, and a stage of two devices."""
    blocks = tuple(Block(f"b{at}", (1e-5, 2e-5, 4e-5), (2e-5, 4e-5, 8e-5), 1e-5, 4e4) for at in range(4))
    edges = tuple(Edge(*each, 4096.0) for each in ((0, 1), (0, 2), (1, 3), (2, 3)))
    stages = tuple(
        Stage((at,), b, devices, 1, 0) for at, (b, devices) in enumerate(((2, (0,)), (4, (1, 2)), (2, (3,)), (4, (4,))))
    )
    plan = scheduled(Plan(8, stages, tuple((each.source, each.target) for each in edges)))
    slow, factor = slowed(BlockGraph("four", blocks, edges), plan)
    assert factor == pytest.approx(0.02 / 2e-5)
    link = Link(1e-4, 1e9)
    wanted = simulated(plan, Costs(slow, Cluster(5, 1e9, link, link, 5), 8)).iteration_s
    assert ended(together(_sleep, 5, tmp_path, plan, slow)) == [0] * 5
    seconds = torch.load(tmp_path / "found-0.pt")
    assert 0.95 * wanted < min(seconds) < 1.5 * wanted


def test_a_rank_that_never_starts_is_noticed(names: tuple[str, ...], tmp_path: Path) -> None:
    plan = plan_of(names, SHARED, CHAIN, BATCH)
    processes = together(_train, 4, tmp_path, plan, "float64", 1, False, False, 3.0)
    processes[2].kill()
    assert ended(processes, 30) == [1, 1, -signal.SIGKILL, 1]
    for rank in (0, 1, 3):
        assert len((tmp_path / f"rank-{rank}.txt").read_text().splitlines()) == 1


def test_processes_that_do_not_match_the_plan_are_refused(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    from collage.graphpipe.runtime import train

    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="the plan is for 4 processes, one a device, and there are 2"):
        train(diamond(), plan_of(names, FOUR, EDGES, BATCH), 1, 5.0)
    plan = replace(plan_of(names, FOUR, EDGES, BATCH), network=("other", *names[1:]))
    with pytest.raises(UsageError, match="the plan is for another network: its block 0 is other"):
        train(diamond(), plan, 1, 5.0)
