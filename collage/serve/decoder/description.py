"""What is known of a decoder once it is recognised: its layers' attention, and where its sequence's positions enter."""

from __future__ import annotations

from dataclasses import dataclass

IDS, POSITIONS, MASK = "input_ids", "position_ids", "attention_mask"
"""The names of a decoder's inputs besides its cache."""
TURNED = ".by_token"
"""What the name of a value ends in whose heads were put behind its tokens."""


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


def by_token(source: Source) -> str:
    """The name of the value that has a source's rows, one for each token."""
    return source.value + TURNED if source.by_head else source.value


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

    Heads of q and k have ``dim`` elements, and those of v and of the output ``value_dim``, as many where that is 0.
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
    value_dim: int = 0

    def __post_init__(self) -> None:
        """Give v's heads the elements of k's where they are not told, as in files of earlier versions."""
        object.__setattr__(self, "value_dim", self.value_dim or self.dim)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """The heads, the K/V heads, ``dim`` and ``value_dim``, as ``sizes`` of ``Heads``."""
        return self.heads, self.kv_heads, self.dim, self.value_dim


@dataclass(frozen=True)
class Decoder:
    """A decoder: its layers in order, the value of its logits, and the vocabulary.

    ``max_length`` is the longest sequence that its tables of positions hold, or None where nothing limits it.
    """

    layers: tuple[Layer, ...]
    logits: str
    vocabulary: int
    max_length: int | None
