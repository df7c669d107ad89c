"""PyTorch's fused operations of transformers in plain ones, which have an ONNX form.

In eval mode without gradients, ``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer`` call them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def plain_form(function: Any) -> Callable[..., Any] | None:
    """A function of plain operations with the arguments and results of a fused one; None for all others."""
    import torch

    forms: dict[Any, Callable[..., Any]] = {
        getattr(torch, "_native_multi_head_attention", None): attention,
        getattr(torch, "_transformer_encoder_layer_fwd", None): encoder_layer,
    }
    return forms.get(function)


def attention(
    query: Any,
    key: Any,
    value: Any,
    width: int,
    heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    mask: Any = None,
    need_weights: bool = True,
    average: bool = True,
    mask_type: int | None = None,
) -> tuple[Any, Any]:
    """The output, batch x positions x width, and the weights, if they are needed, of each head or their mean.

    What the mask has another number than 0 for is masked. It is positions x positions (type 0), batch x positions (1),
    or batch x heads x positions x positions (2).
    """
    import torch

    linear = torch.nn.functional.linear
    parts = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
    q, k, v = (linear(*each).unflatten(-1, (heads, -1)).transpose(1, 2) for each in parts)
    scores = q @ k.transpose(-1, -2) * (width // heads) ** -0.5
    if mask is not None:
        masked = mask != 0
        masked = masked[:, None, None, :] if mask_type == 1 else masked
        scores = scores.masked_fill(masked, -torch.inf)
    weights = torch.softmax(scores, -1)
    output = linear((weights @ v).transpose(1, 2).flatten(2), proj_weight, proj_bias)
    return output, (weights.mean(1) if average else weights) if need_weights else None


def encoder_layer(
    source: Any,
    width: int,
    heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Any,
    norm_bias_1: Any,
    norm_weight_2: Any,
    norm_bias_2: Any,
    ffn_weight_1: Any,
    ffn_bias_1: Any,
    ffn_weight_2: Any,
    ffn_bias_2: Any,
    mask: Any = None,
    mask_type: int | None = None,
) -> Any:
    """A layer of a transformer's encoder; see ``attention`` for the mask."""
    from torch.nn import functional

    def norm_1(x: Any) -> Any:
        return functional.layer_norm(x, (width,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: Any) -> Any:
        return functional.layer_norm(x, (width,), norm_weight_2, norm_bias_2, eps)

    def attend(x: Any) -> Any:
        weights = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return attention(x, x, x, width, heads, *weights, mask, need_weights=False, mask_type=mask_type)[0]

    def feed(x: Any) -> Any:
        hidden = functional.linear(x, ffn_weight_1, ffn_bias_1)
        hidden = functional.gelu(hidden) if gelu else functional.relu(hidden)
        return functional.linear(hidden, ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = source + attend(norm_1(source))
        return x + feed(norm_2(x))
    x = norm_1(source + attend(source))
    return norm_2(x + feed(x))
