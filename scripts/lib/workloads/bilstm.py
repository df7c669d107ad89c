"""A bidirectional LSTM that tags words (Huang, Xu, Yu: "Bidirectional LSTM-CRF Models for Sequence Tagging", 2015,
section 2.2; without the conditional random field), two layers deep."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .weights import randomize
from .workload import Workload


@dataclass(frozen=True)
class Shape:
    tokens: int
    vocabulary: int
    embedding: int
    hidden: int  # of each direction
    layers: int
    tags: int


FULL = Shape(tokens=64, vocabulary=30000, embedding=256, hidden=256, layers=2, tags=45)
SMALL = Shape(tokens=12, vocabulary=200, embedding=16, hidden=16, layers=2, tags=7)


class Tagger(nn.Module):
    """Ids, int64 [N, T] -> log-probabilities of the tags [N, T, tags]."""

    def __init__(self, shape: Shape, batch: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.embedding)
        self.lstm = nn.LSTM(shape.embedding, shape.hidden, shape.layers, batch_first=True, bidirectional=True)
        self.tags = nn.Linear(2 * shape.hidden, shape.tags)
        # Written out, so that the exporter has no batch of unknown size to warn of.
        self.start = (2 * shape.layers, batch, shape.hidden)

    def forward(self, ids: Tensor) -> Tensor:
        start = torch.zeros(self.start)
        states, _ = self.lstm(self.embedding(ids), (start, start))
        return torch.log_softmax(self.tags(states), dim=-1)


def build(*, batch: int, small: bool) -> Workload:
    """int64 `words` [batch, 64] -> float32 `log_probabilities` [batch, 64, 45]."""
    shape = SMALL if small else FULL
    model = Tagger(shape, batch).eval()
    randomize(model, seed=11)
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in model.lstm.parameters():
            parameter.normal_(0.0, 1 / math.sqrt(shape.hidden), generator=generator)

    def sample(seed: int) -> tuple[Tensor, ...]:
        drawn = torch.Generator().manual_seed(seed)
        return (torch.randint(shape.vocabulary, (batch, shape.tokens), generator=drawn),)

    return Workload(model, ("words",), ("log_probabilities",), sample)
