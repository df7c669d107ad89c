"""T5-small, encoder and decoder (Raffel, Shazeer, Roberts, Lee, Narang, Matena, Zhou, Li, Liu: "Exploring the Limits of
Transfer Learning with a Unified Text-to-Text Transformer", JMLR 2020, section 2.1).

60,506,624 parameters, as published. Attention scores are not scaled (the weights are, instead), positions enter
as a bias of the scores by distance, normalisation has no mean and no bias, and the embedding is the last projection.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .weights import randomize
from .workload import Workload

EPSILON = 1e-6  # of every normalisation
MASKED = -10000.0  # added to the attention scores of padding, and of what comes later


@dataclass(frozen=True)
class Shape:
    layers: int  # of the encoder, and of the decoder
    hidden: int
    heads: int
    head: int  # size of each
    feed_forward: int
    tokens: int  # that go in, and as many that come out
    vocabulary: int
    buckets: int = 32  # of distances
    farthest: int = 128  # distances from here on share a bucket


FULL = Shape(layers=6, hidden=512, heads=8, head=64, feed_forward=2048, tokens=64, vocabulary=32128)
SMALL = Shape(layers=2, hidden=32, heads=4, head=8, feed_forward=128, tokens=16, vocabulary=512)


class RmsNorm(nn.Module):
    """[..., hidden] -> [..., hidden]: over the root of the mean square, times a weight for each channel."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON) * self.weight


class PositionBias(nn.Module):
    """What distance adds to the scores of each head: -> [1, heads, tokens, tokens] (rows ask, columns answer)."""

    buckets: Tensor

    def __init__(self, shape: Shape, *, causal: bool) -> None:
        super().__init__()
        self.weight = nn.Embedding(shape.buckets, shape.heads)
        places = torch.arange(shape.tokens)
        buckets = bucket(places[None, :] - places[:, None], shape, causal=causal)
        self.register_buffer("buckets", buckets, persistent=False)

    def forward(self) -> Tensor:
        bias: Tensor = self.weight(self.buckets)
        return bias.permute(2, 0, 1).unsqueeze(0)


def bucket(distance: Tensor, shape: Shape, *, causal: bool) -> Tensor:
    """Half of the buckets are for one distance each, the others grow with its logarithm.

    Those for both directions are split between them; a causal decoder looks back only.
    """
    count = shape.buckets if causal else shape.buckets // 2
    first = torch.zeros_like(distance) if causal else (distance > 0) * count
    far = (-distance).clamp(min=0) if causal else distance.abs()
    exact = count // 2
    share = torch.log(far.clamp(min=1) / exact) / math.log(shape.farthest / exact)
    large = (exact + (share * (count - exact)).long()).clamp(max=count - 1)
    return first + torch.where(far < exact, far, large)


class Attention(nn.Module):
    """Multi-head attention with its normalisation and residual.

    x [N, T, hidden], memory [N, T, hidden] or None for x itself, bias [N or 1, heads or 1, T or 1, T] -> x's shape.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        inner = shape.heads * shape.head
        # Sizes are written out, not read from the input, so that the exported graph has no Shape operators.
        self.split = (shape.tokens, shape.heads, shape.head)
        self.joined = (shape.tokens, inner)
        self.norm = RmsNorm(shape.hidden)
        self.query = nn.Linear(shape.hidden, inner, bias=False)
        self.key = nn.Linear(shape.hidden, inner, bias=False)
        self.value = nn.Linear(shape.hidden, inner, bias=False)
        self.output = nn.Linear(inner, shape.hidden, bias=False)

    def forward(self, x: Tensor, memory: Tensor | None, bias: Tensor) -> Tensor:
        asked = self.norm(x)
        memory = asked if memory is None else memory
        query = self.query(asked).reshape(-1, *self.split).transpose(1, 2)
        key = self.key(memory).reshape(-1, *self.split).transpose(1, 2)
        value = self.value(memory).reshape(-1, *self.split).transpose(1, 2)
        weights = torch.softmax(query @ key.transpose(-2, -1) + bias, dim=-1)  # [N, heads, T, T]
        context = (weights @ value).transpose(1, 2).reshape(-1, *self.joined)
        y: Tensor = x + self.output(context)
        return y


class FeedForward(nn.Module):
    """Two products with a ReLU between, normalisation and residual: [N, T, hidden] -> [N, T, hidden]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm = RmsNorm(shape.hidden)
        self.widen = nn.Linear(shape.hidden, shape.feed_forward, bias=False)
        self.narrow = nn.Linear(shape.feed_forward, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.narrow(torch.relu(self.widen(self.norm(x))))
        return y


class Encoder(nn.Module):
    """x [N, T, hidden], padding's scores [N, 1, 1, T] -> [N, T, hidden]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.positions = PositionBias(shape, causal=False)
        self.attention = nn.ModuleList(Attention(shape) for _ in range(shape.layers))
        self.feed_forward = nn.ModuleList(FeedForward(shape) for _ in range(shape.layers))
        self.norm = RmsNorm(shape.hidden)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        bias = self.positions() + padding
        for attention, feed_forward in zip(self.attention, self.feed_forward, strict=True):
            x = feed_forward(attention(x, None, bias))
        y: Tensor = self.norm(x)
        return y


class Decoder(nn.Module):
    """x [N, T, hidden], the encoder's result [N, T, hidden], its padding's scores [N, 1, 1, T] -> [N, T, hidden]."""

    later: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.positions = PositionBias(shape, causal=True)
        self.attention = nn.ModuleList(Attention(shape) for _ in range(shape.layers))
        self.cross = nn.ModuleList(Attention(shape) for _ in range(shape.layers))
        self.feed_forward = nn.ModuleList(FeedForward(shape) for _ in range(shape.layers))
        self.norm = RmsNorm(shape.hidden)
        later = torch.full((shape.tokens, shape.tokens), MASKED).triu(1)
        self.register_buffer("later", later[None, None], persistent=False)

    def forward(self, x: Tensor, memory: Tensor, padding: Tensor) -> Tensor:
        bias = self.positions() + self.later
        for attention, cross, feed_forward in zip(self.attention, self.cross, self.feed_forward, strict=True):
            x = feed_forward(cross(attention(x, None, bias), memory, padding))
        y: Tensor = self.norm(x)
        return y


class T5(nn.Module):
    """Ids, their mask and the decoder's ids, int64 [N, T] -> logits [N, T, vocabulary]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.hidden)
        self.encoder = Encoder(shape)
        self.decoder = Decoder(shape)
        self.scale = shape.hidden**-0.5

    def forward(self, ids: Tensor, mask: Tensor, decoder_ids: Tensor) -> Tensor:
        padding = (1.0 - mask[:, None, None, :].float()) * MASKED
        memory = self.encoder(self.embedding(ids), padding)
        x = self.decoder(self.embedding(decoder_ids), memory, padding)
        logits: Tensor = (x * self.scale) @ self.embedding.weight.t()
        return logits


@torch.no_grad()
def scale(model: nn.Module, shape: Shape, seed: int) -> None:
    """The queries' weights as small as the scores want them, and weights of the normalisations that differ."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, Attention):
            module.query.weight.mul_(shape.head**-0.5)
        elif isinstance(module, RmsNorm):
            module.weight.uniform_(0.5, 1.5, generator=generator)


def build(*, batch: int, small: bool) -> Workload:
    """int64 `input_ids`, `attention_mask`, `decoder_input_ids` [batch, 64] -> float32 `logits` [batch, 64, 32128]."""
    shape = SMALL if small else FULL
    model = T5(shape).eval()
    randomize(model, seed=8)
    scale(model, shape, seed=8)

    def sample(seed: int) -> tuple[Tensor, ...]:
        """Sample inputs, whose last eighth is padding."""
        generator = torch.Generator().manual_seed(seed)
        size = (batch, shape.tokens)
        ids = torch.randint(shape.vocabulary, size, generator=generator)
        mask = torch.ones(size, dtype=torch.int64)
        mask[:, -(shape.tokens // 8) :] = 0
        return ids, mask, torch.randint(shape.vocabulary, size, generator=generator)

    return Workload(model, ("input_ids", "attention_mask", "decoder_input_ids"), ("logits",), sample)
