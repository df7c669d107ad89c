"""A stage on one device: its passes, computed by torch, or replaced by sleeps of their profiled durations."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from collage.errors import UsageError
from collage.graphpipe.graph import Block, BlockGraph
from collage.graphpipe.plan import Plan, Stage
from collage.graphpipe.trace import Traced, Value
from collage.graphpipe.training import Training
from collage.graphpipe.wiring import Wire

SHORTEST_S = 0.02
"""The seconds of the shortest pass of a stage in sleep mode."""

Tensors = Mapping[str, Any]


class StageWork(Protocol):
    """The computation of a device. Tensors are by value, [samples of a micro-batch's share, ...]."""

    def begin(self, step: int) -> None:
        """Prepare an iteration."""

    def forward(self, index: int, samples: range, reads: Tensors) -> Tensors:
        """The values that a micro-batch gives to other stages."""

    def backward(self, index: int, grads: Tensors) -> Tensors:
        """The gradients of what the stage reads, from those of all that it gives. The micro-batch is forgotten."""

    def grads(self) -> Sequence[Any]:
        """The gradients of all weights, to be added up over the devices of the stage."""

    def update(self) -> float:
        """Take the optimizer's step. Returns this device's share of the loss."""


class TorchStage:
    """A stage that is computed by torch, with an optimizer of its own. Its losses are weighted by their samples.

    The weights of other stages are freed.
    """

    def __init__(self, training: Training, traced: Traced, plan: Plan, at: int) -> None:
        self.piece = traced.piece(plan.stages[at].blocks)
        self.weights = {name: each for name, each in self.piece.module.named_parameters() if each.requires_grad}
        for name, each in traced.module.named_parameters():
            if name not in self.weights and each.requires_grad:
                each.data = each.data.new_empty(0)
        self.optimizer = training.optimizer_of([*self.weights.values()]) if self.weights else None
        self._training, self._traced, self._mini_batch = training, traced, plan.mini_batch
        self._data: tuple[Any, ...] = ()
        self._kept: dict[int, tuple[Tensors, tuple[Any, ...], list[Any]]] = {}
        self._loss = 0.0
        schemas = (getattr(node.target, "_schema", None) for node in self.piece.module.graph.nodes)
        self._in_place = any(each is not None and each.is_mutable for each in schemas)

    def begin(self, step: int) -> None:
        self._data = self._training.inputs(step, self._mini_batch) if self.piece.data else ()
        self._loss = 0.0

    def forward(self, index: int, samples: range, reads: Tensors) -> Tensors:
        import torch

        for name, each in reads.items():
            each.requires_grad_(self._traced.values[name].grad)
        data = (self._data[at][samples.start : samples.stop] for at in self.piece.data)
        inputs = [reads[name].clone() if self._in_place else reads[name] for name in self.piece.reads]
        found = self.piece.module(len(samples), *data, *inputs)
        given, losses = found[: len(self.piece.gives)], found[len(self.piece.gives) :]
        weighted = [each.mean() * (len(samples) / self._mini_batch) for each in losses]
        self._loss += sum(float(each.detach()) for each in weighted)
        self._kept[index] = reads, given, weighted
        return {
            name: each.detach().contiguous(memory_format=torch.contiguous_format)
            for name, each in zip(self.piece.gives, given, strict=True)
        }

    def backward(self, index: int, grads: Tensors) -> Tensors:
        import torch

        reads, given, losses = self._kept.pop(index)
        pairs = [
            (each, grads[name])
            for name, each in zip(self.piece.gives, given, strict=True)
            if name in grads and each.requires_grad
        ]
        pairs += [(each, torch.ones_like(each)) for each in losses if each.requires_grad]
        if pairs:
            torch.autograd.backward(*map(list, zip(*pairs, strict=True)))
        return {
            name: torch.zeros_like(each) if each.grad is None else each.grad.contiguous()
            for name, each in reads.items()
            if each.requires_grad
        }

    def grads(self) -> Sequence[Any]:
        return [each.grad for each in self.weights.values() if each.grad is not None]

    def update(self) -> float:
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return self._loss

    def state(self) -> dict[str, Any]:
        """The weights, and the optimizer's state of each, by the weights' names; and the optimizer's settings."""
        state: dict[str, Any] = {}
        groups: list[dict[str, Any]] = []
        if self.optimizer is not None:
            names = {each: name for name, each in self.weights.items()}
            state = {names[each]: found for each, found in self.optimizer.state.items()}
            groups = [
                {key: each for key, each in group.items() if key != "params"} for group in self.optimizer.param_groups
            ]
        weights = {name: each.detach() for name, each in self.weights.items()}
        return {"weights": weights, "state": state, "groups": groups}

    def load(self, found: Mapping[str, Any]) -> None:
        """Take weights and optimizer state back. Raises UsageError if some are missing."""
        import torch

        if missing := sorted({*self.weights} - {*found["weights"]}):
            raise UsageError(f"the checkpoint is of another network: it has no {missing[0]}.")
        with torch.no_grad():
            for name, each in self.weights.items():
                each.copy_(found["weights"][name])
        if self.optimizer is None:
            return
        names = {each: name for name, each in self.weights.items()}
        numbered = self.optimizer.state_dict()
        order = [each for group in self.optimizer.param_groups for each in group["params"]]
        states = {at: found["state"][names[each]] for at, each in enumerate(order) if names[each] in found["state"]}
        groups = found["groups"] or numbered["param_groups"]
        settings = [
            {**group, **other, "params": group["params"]}
            for group, other in zip(numbered["param_groups"], groups, strict=False)
        ]
        self.optimizer.load_state_dict({"state": states, "param_groups": settings})


class SleepStage:
    """A stage whose passes sleep for given seconds. Messages and gradients have the sizes of the real ones."""

    def __init__(
        self, graph: BlockGraph, plan: Plan, wires: Sequence[Wire], values: Mapping[str, Value], at: int
    ) -> None:
        import torch

        blocks = [graph.blocks[each] for each in plan.stages[at].blocks]
        self._forward_s, self._backward_s = pass_seconds(graph, plan.stages[at])
        self._update_s = sum(each.update_s for each in blocks)
        self._at, self._wires, self._values = at, wires, values
        self._gradients = torch.zeros(max(1, int(sum(each.weight_bytes for each in blocks)) // 4))

    def begin(self, step: int) -> None:
        self._given: dict[str, Any] = {}

    def forward(self, index: int, samples: range, reads: Tensors) -> Tensors:
        time.sleep(self._forward_s)
        return self._empty(len(samples), [each for each in self._wires if each.source == self._at])

    def backward(self, index: int, grads: Tensors) -> Tensors:
        time.sleep(self._backward_s)
        return self._empty(self._samples, [each for each in self._wires if each.target == self._at])

    def _empty(self, samples: int, wires: Sequence[Wire]) -> Tensors:
        import torch

        self._samples = samples
        for each in wires:
            if each.value not in self._given:
                shape = (samples, *self._values[each.value].shape)
                self._given[each.value] = torch.zeros(shape, dtype=torch.uint8)
        return {each.value: self._given[each.value] for each in wires}

    def grads(self) -> Sequence[Any]:
        return [self._gradients]

    def update(self) -> float:
        time.sleep(self._update_s)
        return 0.0


def pass_seconds(graph: BlockGraph, stage: Stage) -> tuple[float, float]:
    """The seconds of a forward and of a backward pass of a stage on each of its devices. Raises UsageError."""
    share = stage.b // len(stage.devices)
    table = share.bit_length() - 1
    if share & (share - 1) or share > graph.largest_micro_batch:
        raise UsageError(f"the graph has no times for {share} samples; profile it with a larger --most.")
    blocks = [graph.blocks[at] for at in stage.blocks]
    return sum(each.forward_s[table] for each in blocks), sum(each.backward_s[table] for each in blocks)


def slowed(graph: BlockGraph, plan: Plan) -> tuple[BlockGraph, float]:
    """The graph for the sleep mode of a plan, and how many times as long its times are.

    The shortest pass of a stage takes ``SHORTEST_S``.
    """
    positive = [each for stage in plan.stages for each in pass_seconds(graph, stage) if each > 0]
    if not positive:
        raise UsageError("the graph has no times to sleep for.")
    factor = SHORTEST_S / min(positive)

    def slow(block: Block) -> Block:
        forward, backward = (tuple(s * factor for s in each) for each in (block.forward_s, block.backward_s))
        return replace(block, forward_s=forward, backward_s=backward, update_s=block.update_s * factor)

    return replace(graph, blocks=tuple(map(slow, graph.blocks))), factor


def torch_wires(traced: Traced, plan: Plan) -> tuple[Wire, ...]:
    """The values between the stages of a plan."""
    home = {block: at for at, stage in enumerate(plan.stages) for block in stage.blocks}
    found = {
        (name, home[traced.home[name]], home[at]): Wire(
            name, home[traced.home[name]], home[at], traced.values[name].grad
        )
        for at in range(len(traced.blocks))
        for name in traced.values
        if name in traced.reads[at] and home[traced.home[name]] != home[at]
    }
    return tuple(found.values())


def sleep_wires(graph: BlockGraph, plan: Plan) -> tuple[Wire, ...]:
    """The edges of a graph between the stages of a plan, each with a value of its own."""
    home = {block: at for at, stage in enumerate(plan.stages) for block in stage.blocks}
    return tuple(
        Wire(str(at), home[each.source], home[each.target], True)
        for at, each in enumerate(graph.edges)
        if home[each.source] != home[each.target]
    )


def sleep_values(graph: BlockGraph) -> dict[str, Value]:
    """The tensors of the edges in sleep mode."""
    import torch

    return {str(at): Value(str(at), (int(each.nbytes),), torch.uint8, True) for at, each in enumerate(graph.edges)}
