"""Small networks with branches, plans for them, and processes that run them. Torch is imported when one is used."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from collage.errors import CollageError
from collage.graphpipe.plan import Plan, Stage, scheduled

WIDTH, CLASSES = 16, 5


def diamond(dtype: str = "float64", momentum: bool = True) -> Any:
    """A training of a network with fan-out, fan-in, a skip connection and indices: stem, left, right and head."""
    import torch
    from torch import nn

    from collage.graphpipe.training import Training

    kind = getattr(torch, dtype)

    class Diamond(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True))
            self.left = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
            self.right = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
            self.words = nn.Embedding(9, WIDTH)
            self.head = nn.Linear(WIDTH, CLASSES)

        def forward(self, x: Any, words: Any, y: Any) -> Any:
            stem = self.stem(x)
            right = self.right(stem) * self.words(words).mean(1)
            return nn.functional.cross_entropy(self.head(self.left(stem) + right + stem), y)

    def batch(step: int, samples: int) -> tuple[Any, ...]:
        random = torch.Generator().manual_seed(step)
        words = torch.randint(0, 9, (samples, 3), generator=random)
        y = torch.randint(0, CLASSES, (samples,), generator=random)
        return torch.randn(samples, WIDTH, generator=random, dtype=kind), words, y

    def optimizer(parameters: list[Any]) -> Any:
        return torch.optim.AdamW(parameters, 1e-2) if momentum else torch.optim.SGD(parameters, 1.0)

    torch.manual_seed(0)
    return Training(Diamond().to(kind), batch, optimizer)


PARTS = ("stem", "left", "right", "head")


def plan_of(names: Sequence[str], stages: Sequence[tuple[Sequence[str], int, int]], edges: Any, batch: int) -> Plan:
    """A plan of stages of (parts, micro-batch, devices). A block is of the part that its name begins with.

    Others, such as an addition, are of the last part.
    """
    part = [next((each for each in PARTS if name.startswith(each)), PARTS[-1]) for name in names]
    part = [
        "right" if name.startswith(("words", "mean", "mul")) else found for name, found in zip(names, part, strict=True)
    ]
    found = []
    device = 0
    for parts, b, degree in stages:
        blocks = tuple(at for at, each in enumerate(part) if each in parts)
        found.append(Stage(blocks, b, tuple(range(device, device + degree)), 1, 0))
        device += degree
    return scheduled(Plan(batch, tuple(found), tuple(edges)))


def together(work: Callable[..., None], size: int, folder: Path, *arguments: Any) -> list[Any]:
    """Start ``size`` processes of ``work(folder, *arguments)`` as torchrun would, from a server that has torch."""
    os.environ["TORCH_CPP_LOG_LEVEL"] = "FATAL"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "torch.distributed", "torch.utils.flop_counter", "networkx"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = [
        context.Process(target=_rank, args=(work, rank, size, port, folder, arguments), daemon=True)
        for rank in range(size)
    ]
    for each in found:
        each.start()
    return found


def ended(processes: Sequence[Any], seconds: float = 60.0) -> list[int | None]:
    """The exit statuses of processes, all within a time limit; those that run on are killed and have None."""
    end = time.monotonic() + seconds
    for each in processes:
        each.join(max(0.0, end - time.monotonic()))
    found = [each.exitcode for each in processes]
    for each in processes:
        each.kill()
        each.join()
    return found


def _rank(work: Callable[..., None], rank: int, size: int, port: int, folder: Path, arguments: Sequence[Any]) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with (folder / f"rank-{rank}.txt").open("w") as stream:
        os.dup2(stream.fileno(), 2)
    import torch

    torch.set_num_threads(1)
    status = 0
    try:
        work(folder, *arguments)
    except CollageError as error:
        print(error, file=sys.stderr, flush=True)
        status = 1
    os._exit(status)
