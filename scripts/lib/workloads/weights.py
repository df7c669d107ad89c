"""Random weights that behave like trained ones: seeded, and scaled so that activations keep their size."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd


@torch.no_grad()
def randomize(model: nn.Module, seed: int) -> None:
    """Overwrite every parameter and running statistic of `model` from one generator, in module order."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, _ConvNd):
            _conv(module, generator)
        elif isinstance(module, nn.Linear):
            # Xavier (Glorot & Bengio 2010).
            _normal(module.weight, math.sqrt(2 / (module.in_features + module.out_features)), generator)
            _normal(module.bias, 0.02, generator)
        elif isinstance(module, nn.Embedding):
            _normal(module.weight, 1.0, generator)
        elif isinstance(module, _BatchNorm):
            _affine(module.weight, module.bias, generator)
            _normal(module.running_mean, 0.1, generator)
            _uniform(module.running_var, 0.75, 1.25, generator)
        elif isinstance(module, nn.LayerNorm):
            _affine(module.weight, module.bias, generator)


@torch.no_grad()
def damp(norms: Iterable[_BatchNorm], factor: float) -> None:
    """Scale the output of each BatchNorm.

    Frozen statistics do not renormalise, so a sum of branches doubles its variance at every block;
    damping the branches keeps a deep network's activations within an order of magnitude.
    """
    for norm in norms:
        norm.weight.mul_(factor)
        norm.bias.mul_(factor)


def _conv(conv: _ConvNd, generator: torch.Generator) -> None:
    """He et al. 2015 for a ReLU before it: variance 2 / (number of terms summed into one output)."""
    fan_in = conv.in_channels // conv.groups * math.prod(conv.kernel_size)
    terms = fan_in / math.prod(conv.stride) if isinstance(conv, _ConvTransposeNd) else fan_in
    _normal(conv.weight, math.sqrt(2 / terms), generator)
    _normal(conv.bias, 0.02, generator)


def _affine(gamma: Tensor | None, beta: Tensor | None, generator: torch.Generator) -> None:
    _uniform(gamma, 0.5, 1.5, generator)
    _normal(beta, 0.1, generator)


def _normal(tensor: Tensor | None, std: float, generator: torch.Generator) -> None:
    if tensor is not None:
        tensor.normal_(0.0, std, generator=generator)


def _uniform(tensor: Tensor | None, low: float, high: float, generator: torch.Generator) -> None:
    if tensor is not None:
        tensor.uniform_(low, high, generator=generator)
