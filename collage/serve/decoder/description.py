"""What is known of a decoder once it is recognised: its layers' attention, and where its sequence's positions enter."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """Where one of q, k and v comes from: columns of a value with one row for each token, before any rotation.

    ``offset`` and ``width`` count elements. Where ``by_head``, the value is [1, heads, tokens, dim], and has to be
    transposed.
    """

    value: str
    offset: int
    width: int
    by_head: bool = False


@dataclass(frozen=True)
class Rotation:
    """The values that hold cos and sin of the tokens' angles, and how the elements of a head are paired.

    They hold the angle of each element, or where ``by_pair`` that of each pair.
    """

    cos: str
    sin: str
    interleaved: bool
    elements: int
    by_pair: bool = False


@dataclass(frozen=True)
class Layer:
    """The attention of one layer: ``node`` names it in messages, and ``output`` has the heads beside each other.

    ``scale``, ``softcap``, ``window``, ``slopes`` and ``sinks`` tell how keys are scored, as those of ``Heads``.
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


@dataclass(frozen=True)
class Decoder:
    """A decoder: its layers in order, the value of its logits, and the vocabulary.

    ``max_length`` is the longest sequence that its tables of positions hold, or None where nothing limits it.
    """

    layers: tuple[Layer, ...]
    logits: str
    vocabulary: int
    max_length: int | None
