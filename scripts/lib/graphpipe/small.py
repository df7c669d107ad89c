"""Small networks for `collage graphpipe run`, on two processes of any machine; each function makes a training."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

WIDTH, CLASSES = 1024, 10


class Branches(nn.Module):
    """Branches of four layers over one input, whose sum a head reads."""

    def __init__(self, branches: int) -> None:
        super().__init__()
        layers = [[each for _ in range(4) for each in (nn.Linear(WIDTH, WIDTH), nn.ReLU())] for _ in range(branches)]
        self.branches = nn.ModuleList(nn.Sequential(*each) for each in layers)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Any, y: Any) -> Any:
        return nn.functional.cross_entropy(self.head(sum(each(x) for each in self.branches)), y)


class Chain(nn.Module):
    """Eight layers, one after another, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(each for _ in range(8) for each in (nn.Linear(WIDTH, WIDTH), nn.ReLU())))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Any, y: Any) -> Any:
        return nn.functional.cross_entropy(self.head(self.layers(x)), y)


def batch(step: int, samples: int) -> tuple[Any, Any]:
    """Random rows and classes, which follow from the step."""
    random = torch.Generator().manual_seed(step)
    return torch.randn(samples, WIDTH, generator=random), torch.randint(0, CLASSES, (samples,), generator=random)


def two() -> tuple[Any, Any]:
    """Two branches."""
    return Branches(2), batch


def one() -> tuple[Any, Any]:
    """One of the branches, with a head of its own."""
    return Branches(1), batch


def six() -> tuple[Any, Any]:
    """Six branches."""
    return Branches(6), batch


def chain() -> tuple[Any, Any]:
    """No branches."""
    return Chain(), batch
