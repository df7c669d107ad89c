"""The costs of a network's blocks, measured on this machine, as the graph that is planned."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from collage.graphpipe.graph import Block, BlockGraph, Edge
from collage.graphpipe.trace import Piece, Traced
from collage.graphpipe.training import Training

RUNS = 5
"""The measured runs of each block; they take turns, and the median counts."""


@dataclass(frozen=True)
class _Ready:
    """A block with its inputs at a number of samples, and the gradients of its outputs."""

    piece: Piece
    inputs: tuple[Any, ...]
    grads: tuple[Any, ...]

    def seconds(self) -> tuple[float, float]:
        """Run the block once: the seconds of its forward and of its backward pass."""
        import torch

        start = time.perf_counter()
        found = self.piece.module(*self.inputs)
        middle = time.perf_counter()
        pairs = [(out, grad) for out, grad in zip(found, self.grads, strict=True) if out.requires_grad]
        if pairs:
            torch.autograd.backward(*zip(*pairs, strict=True))
        return middle - start, time.perf_counter() - middle if pairs else 0.0


def profiled(
    training: Training,
    traced: Traced,
    name: str,
    largest: int = 64,
    runs: int = RUNS,
    progress: Callable[[str], None] = lambda _: None,
) -> BlockGraph:
    """The blocks of a training with their seconds at 1, 2, 4, ... ``largest`` samples, by torch's present threads.

    The network is not the same afterwards: optimizers have run. Raises CollageError, also if the loss is not the mean
    over the samples.
    """
    training.check_samples(traced)
    pieces = [traced.piece([at]) for at in range(len(traced.blocks))]
    forward: list[list[float]] = [[] for _ in pieces]
    backward: list[list[float]] = [[] for _ in pieces]
    samples = 1
    while samples <= largest:
        progress(f"{len(pieces)} blocks at {samples} samples")
        for at, (one, other) in enumerate(_times(training, pieces, samples, runs)):
            forward[at].append(one)
            backward[at].append(other)
        samples *= 2
    updates, factor = _updates(training, pieces, runs)
    blocks = tuple(
        Block(
            traced.names[at],
            tuple(forward[at]),
            tuple(backward[at]),
            updates[at],
            float(sum(each.nbytes for each in piece.module.parameters())),
            traced.activation_bytes[at],
        )
        for at, piece in enumerate(pieces)
    )
    return BlockGraph(name, blocks, edges(traced), factor)


def edges(traced: Traced) -> tuple[Edge, ...]:
    """The edges between blocks, with the bytes of all their tensors."""
    found: dict[tuple[int, int], int] = defaultdict(int)
    for at, names in enumerate(traced.reads):
        for name in names:
            found[traced.home[name], at] += traced.values[name].nbytes
    return tuple(Edge(*pair, float(nbytes)) for pair, nbytes in sorted(found.items()))


def _times(training: Training, pieces: Iterable[Piece], samples: int, runs: int) -> list[tuple[float, float]]:
    """The median seconds of the forward and the backward pass of each block. One more run warms up."""
    ready = _prepared(training, pieces, samples)
    found = [[each.seconds() for each in ready] for _ in range(runs + 1)][1:]
    return [(median(f for f, _ in each), median(b for _, b in each)) for each in zip(*found, strict=True)]


def _prepared(training: Training, pieces: Iterable[Piece], samples: int) -> list[_Ready]:
    """All blocks with inputs from a run of the network."""
    import torch

    data = training.inputs(0, samples)
    known: dict[str, Any] = {}
    ready = []
    for piece in pieces:
        reads = tuple(known[name] for name in piece.reads)
        found = piece.module(samples, *(data[at] for at in piece.data), *reads)
        for name, each in zip(piece.gives, found, strict=False):
            known[name] = each.detach().clone(memory_format=torch.contiguous_format).requires_grad_(each.requires_grad)
        grads = tuple(torch.ones_like(each) for each in found)
        ready.append(_Ready(piece, (samples, *(data[at] for at in piece.data), *reads), grads))
    return ready


def _updates(training: Training, pieces: Iterable[Piece], runs: int) -> tuple[list[float], float]:
    """The seconds of an optimizer's step for each block, and the bytes of all state over those of the weights."""
    seconds = []
    weights = state = 0
    for piece in pieces:
        parameters = [each for each in piece.module.parameters() if each.requires_grad]
        weights += sum(each.nbytes for each in parameters)
        state += 2 * sum(each.nbytes for each in parameters)
        if not parameters:
            seconds.append(0.0)
            continue
        optimizer = training.optimizer_of(parameters)
        taken = []
        for _ in range(runs + 1):
            start = time.perf_counter()
            optimizer.step()
            taken.append(time.perf_counter() - start)
        seconds.append(median(taken[1:]))
        state += sum(each.nbytes for found in optimizer.state.values() for each in _tensors(found))
    return seconds, state / weights if weights else 1.0


def _tensors(state: Mapping[str, Any]) -> list[Any]:
    import torch

    return [each for each in state.values() if isinstance(each, torch.Tensor) and each.ndim]
