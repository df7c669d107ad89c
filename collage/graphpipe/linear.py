"""A chain of stages on torch.distributed.pipelining (1F1B), to compare the runtime with."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from collage.errors import UsageError
from collage.graphpipe.plan import Plan
from collage.graphpipe.runtime import Ended, Peers, Progress, rank_and_size
from collage.graphpipe.trace import Piece
from collage.graphpipe.training import Training


def train_chain(
    training: Training, plan: Plan, steps: int, limit_s: float, progress: Progress = lambda step, loss, seconds: None
) -> Ended:
    """Train the network of a plan as one of its processes, as `runtime.train` does.

    Raises UsageError for what torch.distributed.pipelining does not take: stages that are no chain, have several
    devices or other micro-batches than each other, or read inputs elsewhere than in the first one, and one in the last.
    """
    import torch
    from torch import nn
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    traced = training.trace()
    plan.check_network(traced.names)
    pieces = [traced.piece(stage.blocks) for stage in plan.stages]
    _check(plan, pieces)
    training.check_micro_batches(traced, plan, *rank_and_size())
    peers = Peers([stage.devices for stage in plan.stages], limit_s)
    at, last, piece = peers.rank, len(plan.stages) - 1, pieces[peers.rank]
    weights = [each for each in piece.module.parameters() if each.requires_grad]
    optimizer = training.optimizer_of(weights) if weights else None

    class Part(nn.Module):
        """A stage. The last one hands on what it reads, since only the loss has the target."""

        def __init__(self) -> None:
            super().__init__()
            self.piece = piece.module

        def forward(self, *inputs: Any) -> Any:
            found = inputs if at == last else self.piece(len(inputs[0]), *inputs)
            return found[0] if len(found) == 1 else tuple(found)

    def loss_of(found: Any, target: Any) -> Any:
        reads = found if isinstance(found, tuple) else (found,)
        return sum(each.mean() for each in piece.module(len(target), target, *reads))

    count = plan.mini_batch // plan.stages[0].b
    stage = PipelineStage(Part(), at, last + 1, torch.device("cpu"))
    schedule = Schedule1F1B(stage, count, loss_fn=loss_of)
    found, seconds = [], []
    for step in range(steps):
        data = training.inputs(step, plan.mini_batch)
        target = data[piece.data[0]] if at == last else None
        start = time.perf_counter()
        losses: list[Any] = []
        with peers.waiting("another rank"):
            schedule.step(*(data[each] for each in piece.data if at == 0), target=target, losses=losses)
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        loss = torch.tensor([sum(float(each.detach()) for each in losses) / count], dtype=torch.float64)
        peers.add_up([loss])
        found.append(float(loss))
        seconds.append(time.perf_counter() - start)
        progress(step, found[-1], seconds[-1])
    return Ended(0, tuple(found), tuple(seconds))


def _check(plan: Plan, pieces: Sequence[Piece]) -> None:
    """Raise UsageError unless torch.distributed.pipelining can run the plan."""
    count = len(plan.stages)
    what = ""
    if count < 2 or {*plan.edges} != {(at, at + 1) for at in range(count - 1)}:
        what = "its stages are no chain of two or more"
    elif any(len(stage.devices) > 1 for stage in plan.stages):
        what = "a stage has several devices"
    elif len({stage.b for stage in plan.stages}) > 1:
        what = "its stages have different micro-batches"
    elif any(piece.data for piece in pieces[1:-1]) or len(pieces[-1].data) != 1:
        what = "inputs reach other stages than the first one, or not one of them reaches the last one"
    elif [*pieces[-1].reads] != [*pieces[-2].gives]:
        what = "a stage reads other values than the one before it gives"
    if what:
        raise UsageError(f"torch.distributed.pipelining cannot run the plan: {what}.")
