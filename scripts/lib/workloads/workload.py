"""A network together with what is needed to export it and to try it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Workload:
    """`model` in inference mode; `sample(seed)` draws its inputs, in the order of `input_names`.

    `dynamic` names the axes that the file leaves open, by input or output.
    """

    model: nn.Module
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    sample: Callable[[int], tuple[Tensor, ...]]
    dynamic: Mapping[str, Mapping[int, str]] = field(default_factory=dict)

    @property
    def parameters(self) -> int:
        """Number of trained scalars (BatchNorm's running statistics are not among them)."""
        return sum(parameter.numel() for parameter in self.model.parameters())


def gaussian_inputs(*shape: int) -> Callable[[int], tuple[Tensor, ...]]:
    """A sampler of one float32 tensor of `shape`, standard normal: a normalised picture, or a latent."""

    def sample(seed: int) -> tuple[Tensor, ...]:
        return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)),)

    return sample
