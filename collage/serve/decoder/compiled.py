"""A compiled decoder as a value: its layers, its tables of angles, and the parts of its segments for each bucket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain

from collage.runtime.parts import Parts
from collage.serve.attention import Heads, LayerAttention

IDS, POSITIONS, MASK = "input_ids", "position_ids", "attention_mask"
"""The names of a decoder's inputs besides its cache."""
TURNED = ".by_token"
"""What the name of a value ends in whose heads were put behind its tokens."""


@dataclass(frozen=True)
class Source:
    """Where one of q, k and v comes from: columns of a value with one row for each token, before any rotation.

    ``offset`` and ``width`` count elements. If ``by_head``, the value is [1, heads, tokens, dim], and has to be
    transposed.
    """

    value: str
    offset: int
    width: int
    by_head: bool = False


def by_token(source: Source) -> str:
    """The name of the value that has a source's rows, one for each token."""
    return source.value + TURNED if source.by_head else source.value


@dataclass(frozen=True)
class Rotation:
    """The values that hold cos and sin of the tokens' angles, and how the elements of a head are paired.

    They hold the angle of each element, or, if ``by_pair``, that of each pair.
    """

    cos: str
    sin: str
    interleaved: bool
    elements: int
    by_pair: bool = False


@dataclass(frozen=True)
class Layer:
    """The attention of one layer: ``node`` names it in messages, and ``output`` has the heads beside each other.

    Heads of q and k have ``dim`` elements, and those of v and of the output ``value_dim``, as many if that is 0.
    ``scale``, ``softcap``, ``window``, ``slopes`` and ``sinks`` say how keys are scored, as those of ``Heads``.
    """

    node: str
    q: Source
    k: Source
    v: Source
    output: str
    heads: int
    kv_heads: int
    dim: int
    scale: float
    rotation: Rotation | None
    softcap: float = 0.0
    window: int = 0
    slopes: tuple[float, ...] = ()
    sinks: tuple[float, ...] = ()
    value_dim: int = 0

    def __post_init__(self) -> None:
        """Give v's heads the elements of k's if they are not given, as in files of earlier versions."""
        object.__setattr__(self, "value_dim", self.value_dim or self.dim)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """The heads, the K/V heads, ``dim`` and ``value_dim``, as ``sizes`` of ``Heads``."""
        return self.heads, self.kv_heads, self.dim, self.value_dim


@dataclass(frozen=True)
class Decoder:
    """A decoder: its layers in order, the value of its logits, and the vocabulary.

    ``max_length`` is the longest sequence that its tables of positions hold, or None if nothing limits it.
    """

    layers: tuple[Layer, ...]
    logits: str
    vocabulary: int
    max_length: int | None


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
        return tuple(sorted(self.segments))

    @property
    def precisions(self) -> frozenset[str]:
        parts = [*chain.from_iterable(self.segments.values()), *self.ends.values()]
        return frozenset(region.precision for each in parts for region in each.program.launches) - {""}

    @property
    def reduced(self) -> bool:
        return bool(self.precisions)

    @property
    def steps(self) -> tuple[After, ...]:
        return self.after or tuple(After(layer) for layer in range(len(self.decoder.layers)))
