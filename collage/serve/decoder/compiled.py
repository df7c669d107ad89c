"""A compiled decoder as a value: its description, its tables, and the parts of its segments for each bucket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain

from collage.runtime.parts import Parts
from collage.serve.attention import Heads, LayerAttention
from collage.serve.decoder.description import Decoder


@dataclass(frozen=True)
class Wiring:
    """The values that a segment reads and writes, in the order of its module's inputs and outputs."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True)
class After:
    """What follows a segment: the attention of a layer, or where ``layer`` is -1 sums over all processes."""

    layer: int
    sums: tuple[str, ...] = ()


@dataclass(frozen=True)
class CompiledDecoder:
    """A decoder that is ready to be loaded.

    ``segments`` has for each bucket of tokens the parts of all segments but the last, and ``ends`` for each bucket of
    rows those of the last one, which gives logits. ``wiring`` is that of all segments, and ``attention`` tells how each
    layer attends. ``costs_ms`` is the measured time of an iteration for each bucket of tokens, and ``body_ms`` that of
    a chunk of one prompt, without logits.

    ``error`` is the largest error of a logit that was seen in the check, as a share of the largest one of its row, and
    ``tolerance`` what is allowed of it for weights in bfloat16. ``end_tokens`` end an answer.

    Where ``processes`` are several, this is the part of one of them, with some of the heads, and ``after`` has what
    follows each segment but the last one.
    """

    name: str
    decoder: Decoder
    attention: tuple[LayerAttention, ...]
    max_length: int
    threads: int
    wiring: tuple[Wiring, ...]
    segments: Mapping[int, tuple[Parts, ...]]
    ends: Mapping[int, Parts]
    costs_ms: Mapping[int, float] = field(default_factory=dict)
    processes: int = 1
    after: tuple[After, ...] = ()
    error: float = 0.0
    tolerance: float = 0.0
    body_ms: Mapping[int, float] = field(default_factory=dict)
    end_tokens: tuple[int, ...] = ()

    @property
    def heads(self) -> Heads:
        """The heads of the first layer. Those of the others have the same ``sizes``, and may score keys otherwise."""
        return self.attention[0].heads

    @property
    def buckets(self) -> tuple[int, ...]:
        """The numbers of tokens that it was compiled for."""
        return tuple(sorted(self.segments))

    @property
    def precisions(self) -> frozenset[str]:
        """The reduced precisions that some kernels compute in."""
        parts = [*chain.from_iterable(self.segments.values()), *self.ends.values()]
        return frozenset(region.precision for each in parts for region in each.program.launches) - {""}

    @property
    def reduced(self) -> bool:
        """Whether some kernels compute in a reduced precision."""
        return bool(self.precisions)

    @property
    def steps(self) -> tuple[After, ...]:
        """What follows each segment but the last one."""
        return self.after or tuple(After(layer) for layer in range(len(self.decoder.layers)))
