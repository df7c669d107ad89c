"""The sizes of a decoder, and the named ones."""

from __future__ import annotations

from dataclasses import dataclass, replace

GPT2, LLAMA = "gpt2", "llama"
PAST, ATTENTION, PLAIN = "past", "attention", "plain"


@dataclass(frozen=True)
class DecoderShape:
    """``family`` is GPT2 (learned positions, LayerNorm, GELU) or LLAMA (rotary, RMSNorm, SwiGLU, grouped heads).

    ``form`` says how attention is written: PAST as optimum exports it, with a cache as inputs and outputs; ATTENTION as
    ONNX's operator of set 23, with the same cache; PLAIN without a cache, for whole sequences. ``positions`` is the
    longest sequence, and ``bias`` tells whether a LLAMA's q, k and v have biases, as Qwen2's do.

    A LLAMA rotates the first ``rotary`` elements of a head, all where it is None: as pairs of neighbours where
    ``pairs``, as GPT-J does, else each with the one half of them away. Heads of its v have ``values`` elements, as many
    as those of its k where that is 0.

    With ``latent``, a LLAMA has the multi-head latent attention of DeepSeek-V2 and V3: k and v of all heads are
    products of one vector of so many elements for each token. The last ``rotary`` elements of a head are rotated
    instead of the first, and all heads of k have the same there.

    With ``experts``, the inner part of a LLAMA is a mixture of so many of ``inner`` elements each, of which every token
    chooses ``chosen``. It is the loop over all experts that exporters write: as optimum does, or with ATTENTION as
    torch's exporter does. With PLAIN all experts compute all tokens, as in GPT-OSS. Where it ``sorts``, tokens are put
    in the order of their experts, as in Granite.
    """

    family: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int
    positions: int
    form: str = PAST
    bias: bool = False
    rotary: int | None = None
    pairs: bool = False
    experts: int = 0
    chosen: int = 0
    values: int = 0
    latent: int = 0
    sorts: bool = False

    @property
    def head(self) -> int:
        """The elements of a head of q and k."""
        return self.width // self.heads

    @property
    def value(self) -> int:
        """The elements of a head of v."""
        return self.values or self.head

    @property
    def rotated(self) -> int:
        """The elements of a head that are rotated."""
        return self.head if self.rotary is None else self.rotary

    @property
    def parameters(self) -> int:
        """The number of weights, roughly: without norms and biases."""
        attention = 2 * self.width * self.width + 2 * self.width * self.kv_heads * self.head
        gates = 2 if self.family == GPT2 else 3
        tables = self.vocabulary * self.width * (1 if self.family == GPT2 else 2)
        inner = self.inner * max(1, self.experts)
        return self.layers * (attention + gates * self.width * inner) + tables


NAMED = {
    "gpt2_124m": DecoderShape(GPT2, 12, 768, 12, 12, 3072, 50257, 1024),
    "qwen2_like": DecoderShape(LLAMA, 12, 768, 12, 4, 2048, 32000, 4096, bias=True),
    "llama_1b": DecoderShape(LLAMA, 22, 2048, 32, 4, 5632, 32000, 4096),
    "moe_like": DecoderShape(LLAMA, 12, 768, 12, 4, 256, 32000, 4096, experts=32, chosen=4),
}
"""GPT-2 of 124 M parameters (Radford et al. 2019), a Llama like Qwen2 of the same depth and width, a Llama of 1.1 G
parameters (the sizes of TinyLlama), and a mixture of 32 experts like Qwen3's, of which a token chooses 4."""

SUMMARIES = {
    "gpt2_124m": "GPT-2 of 124 M parameters as a decoder with a K/V cache (Radford et al. 2019)",
    "qwen2_like": "A decoder like Qwen2: 12 layers of 768, 4 K/V heads, rotary, with a K/V cache",
    "llama_1b": "A Llama of 1.1 G parameters as a decoder with a K/V cache, 4.4 GB",
    "moe_like": "A mixture of 32 experts in 12 layers of 768, of which a token chooses 4, with a K/V cache, 1.2 GB",
}


def small(shape: DecoderShape, layers: int = 2) -> DecoderShape:
    """The same architecture with 64 elements, a vocabulary of 256, and few layers, for tests."""
    return replace(
        shape,
        layers=layers,
        width=64,
        heads=4,
        kv_heads=4 if shape.kv_heads == shape.heads else 2,
        inner=128,
        vocabulary=256,
        positions=256,
        experts=min(shape.experts, 5),
        chosen=min(shape.chosen, 2),
    )
