"""ViT-Ti/16 (Dosovitskiy et al.: "An Image is Worth 16x16 Words", ICLR 2021, section 3.1; the size is that of Touvron
et al.: "Training data-efficient image transformers", ICML 2021, table 1). 5,717,416 parameters, as published."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .weights import randomize
from .workload import Workload, gaussian_inputs

EPSILON = 1e-6  # of every LayerNorm


@dataclass(frozen=True)
class Shape:
    image: int  # pixels on a side
    patch: int  # pixels on a side
    layers: int
    hidden: int
    heads: int
    classes: int

    @property
    def tokens(self) -> int:
        """Patches, and the one that the class is read from."""
        return (self.image // self.patch) ** 2 + 1


FULL = Shape(image=224, patch=16, layers=12, hidden=192, heads=3, classes=1000)
SMALL = Shape(image=32, patch=8, layers=2, hidden=32, heads=4, classes=10)


class Layer(nn.Module):
    """Self-attention and a feed-forward network, each normalised before and added: [N, T, hidden] -> the same."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        # Sizes are written out, not read from the input, so that the exported graph has no Shape operators.
        self.split = (shape.tokens, 3, shape.heads, shape.hidden // shape.heads)
        self.joined = (shape.tokens, shape.hidden)
        self.scale = math.sqrt(shape.hidden // shape.heads)
        self.norm1 = nn.LayerNorm(shape.hidden, eps=EPSILON)
        self.qkv = nn.Linear(shape.hidden, 3 * shape.hidden)
        self.output = nn.Linear(shape.hidden, shape.hidden)
        self.norm2 = nn.LayerNorm(shape.hidden, eps=EPSILON)
        self.widen = nn.Linear(shape.hidden, 4 * shape.hidden)
        self.gelu = nn.GELU()
        self.narrow = nn.Linear(4 * shape.hidden, shape.hidden)

    def forward(self, x: Tensor) -> Tensor:
        qkv = (
            self.qkv(self.norm1(x)).reshape(-1, *self.split).permute(2, 0, 3, 1, 4)
        )  # [3, N, heads, T, head]
        query, key, value = qkv.unbind(0)
        weights = torch.softmax(query @ key.transpose(-2, -1) / self.scale, dim=-1)
        x = x + self.output((weights @ value).transpose(1, 2).reshape(-1, *self.joined))
        y: Tensor = x + self.narrow(self.gelu(self.widen(self.norm2(x))))
        return y


class VisionTransformer(nn.Module):
    """Picture [N, 3, image, image] -> logits [N, classes]."""

    def __init__(self, shape: Shape, batch: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, shape.hidden, shape.patch, stride=shape.patch)
        self.first = nn.Parameter(torch.zeros(1, 1, shape.hidden))
        self.positions = nn.Parameter(torch.zeros(1, shape.tokens, shape.hidden))
        self.layers = nn.Sequential(*(Layer(shape) for _ in range(shape.layers)))
        self.norm = nn.LayerNorm(shape.hidden, eps=EPSILON)
        self.classifier = nn.Linear(shape.hidden, shape.classes)
        self.batch = batch

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat((self.first.expand(self.batch, -1, -1), tokens), dim=1) + self.positions
        logits: Tensor = self.classifier(self.norm(self.layers(tokens))[:, 0])
        return logits


def build(*, batch: int, small: bool) -> Workload:
    """float32 `image` [batch, 3, 224, 224] -> float32 `logits` [batch, 1000]."""
    shape = SMALL if small else FULL
    model = VisionTransformer(shape, batch).eval()
    randomize(model, seed=9)
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        model.first.normal_(0.0, 0.5, generator=generator)
        model.positions.normal_(0.0, 0.5, generator=generator)
    return Workload(model, ("image",), ("logits",), gaussian_inputs(batch, 3, shape.image, shape.image))
