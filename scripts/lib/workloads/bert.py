"""BERT-base's encoder (Devlin, Chang, Lee, Toutanova: "BERT: Pre-training of Deep Bidirectional
Transformers", NAACL 2019, section 3): the layer of Vaswani et al. 2017 with the GELU of Hendrycks & Gimpel
2016."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .weights import randomize
from .workload import Workload

EPSILON = 1e-12  # of every LayerNorm
MASKED = -10000.0  # added to the attention scores of padding


@dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    heads: int
    feed_forward: int
    tokens: int
    vocabulary: int
    positions: int
    token_types: int = 2


FULL = Shape(layers=12, hidden=768, heads=12, feed_forward=3072, tokens=64, vocabulary=30522, positions=512)
SMALL = Shape(layers=2, hidden=32, heads=4, feed_forward=128, tokens=16, vocabulary=512, positions=32)


class Embeddings(nn.Module):
    """Ids and token types [N, tokens] -> [N, tokens, hidden]: three embeddings summed and normalised."""

    positions: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.word = nn.Embedding(shape.vocabulary, shape.hidden)
        self.position = nn.Embedding(shape.positions, shape.hidden)
        self.token_type = nn.Embedding(shape.token_types, shape.hidden)
        self.norm = nn.LayerNorm(shape.hidden, eps=EPSILON)
        self.register_buffer("positions", torch.arange(shape.tokens).unsqueeze(0), persistent=False)

    def forward(self, ids: Tensor, token_types: Tensor) -> Tensor:
        words, types = self.word(ids), self.token_type(token_types)
        x: Tensor = self.norm(words + types + self.position(self.positions))
        return x


class Attention(nn.Module):
    """Multi-head self-attention with its residual: x [N, T, hidden], mask [N, 1, 1, T] -> [N, T, hidden]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        # Sizes are written out, not read from the input, so that the exported graph has no Shape operators.
        self.split = (shape.tokens, shape.heads, shape.hidden // shape.heads)
        self.joined = (shape.tokens, shape.hidden)
        self.scale = math.sqrt(shape.hidden // shape.heads)
        self.query = nn.Linear(shape.hidden, shape.hidden)
        self.key = nn.Linear(shape.hidden, shape.hidden)
        self.value = nn.Linear(shape.hidden, shape.hidden)
        self.output = nn.Linear(shape.hidden, shape.hidden)
        self.norm = nn.LayerNorm(shape.hidden, eps=EPSILON)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (
            each(x).reshape(-1, *self.split).transpose(1, 2) for each in (self.query, self.key, self.value)
        )
        # Not one permute: Inductor 2.13 would take it for this transposition (pytorch/pytorch#195320), and fail.
        scores = query @ key.transpose(-2, -1) / self.scale
        weights = torch.softmax(scores + mask, dim=-1)  # [N, heads, T, T]
        context = (weights @ value).transpose(1, 2).reshape(-1, *self.joined)
        y: Tensor = self.norm(self.output(context) + x)
        return y


class Layer(nn.Module):
    """One encoder layer: x [N, T, hidden], mask [N, 1, 1, T] -> [N, T, hidden]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention = Attention(shape)
        self.widen = nn.Linear(shape.hidden, shape.feed_forward)
        self.gelu = nn.GELU()  # the exact one, with erf
        self.narrow = nn.Linear(shape.feed_forward, shape.hidden)
        self.norm = nn.LayerNorm(shape.hidden, eps=EPSILON)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention(x, mask)
        y: Tensor = self.norm(self.narrow(self.gelu(self.widen(x))) + x)
        return y


class Bert(nn.Module):
    """Ids, mask and token types, int64 [N, T] -> last hidden state [N, T, hidden], pooled [N, hidden]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embeddings = Embeddings(shape)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.pooler = nn.Linear(shape.hidden, shape.hidden)

    def forward(self, ids: Tensor, mask: Tensor, token_types: Tensor) -> tuple[Tensor, Tensor]:
        dtype = self.pooler.weight.dtype  # that of the scores, as Hugging Face does it
        added = (1.0 - mask[:, None, None, :].to(dtype)) * MASKED
        x = self.embeddings(ids, token_types)
        for layer in self.layers:
            x = layer(x, added)
        return x, torch.tanh(self.pooler(x[:, 0]))


def build(*, batch: int, small: bool) -> Workload:
    """int64 `input_ids`, `attention_mask`, `token_type_ids` [batch, 64] -> float32 `last_hidden_state`
    [batch, 64, 768] and `pooler_output` [batch, 768]."""
    shape = SMALL if small else FULL
    model = Bert(shape).eval()
    randomize(model, seed=1)

    def sample(seed: int) -> tuple[Tensor, ...]:
        """Two sentences of half the tokens each; the last eighth is padding."""
        generator = torch.Generator().manual_seed(seed)
        size = (batch, shape.tokens)
        ids = torch.randint(shape.vocabulary, size, generator=generator)
        mask = torch.ones(size, dtype=torch.int64)
        mask[:, -(shape.tokens // 8) :] = 0
        token_types = torch.zeros(size, dtype=torch.int64)
        token_types[:, shape.tokens // 2 :] = 1
        return ids, mask, token_types

    names = ("input_ids", "attention_mask", "token_type_ids")
    return Workload(model, names, ("last_hidden_state", "pooler_output"), sample)
