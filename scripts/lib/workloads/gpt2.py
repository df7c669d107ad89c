"""A GPT-2 (Radford, Wu, Child, Luan, Amodei, Sutskever: "Language Models are Unsupervised Multitask Learners", 2019,
section 2.3) of half the depth and width of the smallest one: 6 layers of 384, the whole vocabulary.

A prompt of 64 tokens, and what comes after each of them. The embedding is the last projection, too; GELU is the
approximation with tanh.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .weights import randomize
from .workload import Workload

EPSILON = 1e-5  # of every LayerNorm
MASKED = -10000.0  # added to the attention scores of what comes later


@dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    heads: int
    tokens: int
    vocabulary: int
    positions: int


FULL = Shape(layers=6, hidden=384, heads=6, tokens=64, vocabulary=50257, positions=1024)
SMALL = Shape(layers=2, hidden=32, heads=4, tokens=16, vocabulary=512, positions=32)


class Block(nn.Module):
    """Causal self-attention and a feed-forward network, each normalised before and added: [N, T, hidden] -> same."""

    later: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        # Sizes are written out, not read from the input, so that the exported graph has no Shape operators.
        self.split = (shape.tokens, shape.heads, shape.hidden // shape.heads)
        self.joined = (shape.tokens, shape.hidden)
        self.hidden = shape.hidden
        self.scale = math.sqrt(shape.hidden // shape.heads)
        self.norm1 = nn.LayerNorm(shape.hidden, eps=EPSILON)
        self.qkv = nn.Linear(shape.hidden, 3 * shape.hidden)
        self.output = nn.Linear(shape.hidden, shape.hidden)
        self.norm2 = nn.LayerNorm(shape.hidden, eps=EPSILON)
        self.widen = nn.Linear(shape.hidden, 4 * shape.hidden)
        self.gelu = nn.GELU(approximate="tanh")
        self.narrow = nn.Linear(4 * shape.hidden, shape.hidden)
        later = torch.full((shape.tokens, shape.tokens), MASKED).triu(1)
        self.register_buffer("later", later[None, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.reshape(-1, *self.split).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(self.hidden, dim=2)
        )
        weights = torch.softmax(query @ key.transpose(-2, -1) / self.scale + self.later, dim=-1)
        x = x + self.output((weights @ value).transpose(1, 2).reshape(-1, *self.joined))
        y: Tensor = x + self.narrow(self.gelu(self.widen(self.norm2(x))))
        return y


class Gpt2(nn.Module):
    """Ids, int64 [N, T] -> logits of what comes next [N, T, vocabulary]."""

    places: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.hidden)
        self.position = nn.Embedding(shape.positions, shape.hidden)
        self.blocks = nn.Sequential(*(Block(shape) for _ in range(shape.layers)))
        self.norm = nn.LayerNorm(shape.hidden, eps=EPSILON)
        self.scale = shape.hidden**-0.5
        self.register_buffer("places", torch.arange(shape.tokens).unsqueeze(0), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.blocks(self.embedding(ids) + self.position(self.places))
        # Trained embeddings are small; ours have variance 1, as `randomize` makes them, and the scale puts that right.
        logits: Tensor = (self.norm(x) * self.scale) @ self.embedding.weight.t()
        return logits


def build(*, batch: int, small: bool) -> Workload:
    """int64 `input_ids` [batch, 64] -> float32 `logits` [batch, 64, 50257]."""
    shape = SMALL if small else FULL
    model = Gpt2(shape).eval()
    randomize(model, seed=10)

    def sample(seed: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(seed)
        return (torch.randint(shape.vocabulary, (batch, shape.tokens), generator=generator),)

    return Workload(model, ("input_ids",), ("logits",), sample)
