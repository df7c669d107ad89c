"""PyTorch's own exporter on a decoder with a cache: keys and values are inputs and outputs, named as optimum does."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

_CACHES: Any = import_module("transformers.cache_utils")

_BATCH, _PAST, _NEW = 2, 5, 3
"""The sizes that the model is traced with; none of them stays in the graph."""


class _WithCache(torch.nn.Module):  # type: ignore[misc]  # torch has no types here
    """A decoder whose cache is a list of tensors."""

    def __init__(self, model: Any, takes_positions: bool) -> None:
        super().__init__()
        self.model = model
        self.takes_positions = takes_positions

    def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, past: Any) -> Any:
        """The logits, and the keys and values of all tokens, layer by layer."""
        more = {"position_ids": position_ids} if self.takes_positions else {}
        found = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            past_key_values=_cache(past),
            use_cache=True,
            **more,
        )
        return found.logits, *_tensors(found.past_key_values)


def export_with_cache(model: Any, path: Path, operator_set: int) -> None:
    """Write the model to an ONNX file. Raises whatever PyTorch raises where it cannot."""
    takes_positions = "position_ids" in inspect.signature(model.forward).parameters
    ids = torch.ones(_BATCH, _PAST, dtype=torch.int64)
    with torch.no_grad():
        past = _tensors(
            model(input_ids=ids, use_cache=True, past_key_values=_CACHES.DynamicCache()).past_key_values
        )
    names = [f"{layer}.{part}" for layer in range(len(past) // 2) for part in ("key", "value")]
    whole, own = {0: "batch", 1: "past + new"}, {0: "batch", 1: "new"}
    dynamic = torch.export.Dim.DYNAMIC
    positions = torch.arange(_PAST, _PAST + _NEW).repeat(_BATCH, 1)
    torch.onnx.export(
        _WithCache(model, takes_positions).eval(),
        (
            torch.ones(_BATCH, _NEW, dtype=torch.int64),
            torch.ones(_BATCH, _PAST + _NEW, dtype=torch.int64),
            positions if takes_positions else None,
            past,
        ),
        str(path),
        dynamo=True,
        opset_version=operator_set,
        external_data=False,
        verbose=False,
        input_names=[
            "input_ids",
            "attention_mask",
            *(["position_ids"] if takes_positions else []),
            *(f"past_key_values.{name}" for name in names),
        ],
        output_names=["logits", *(f"present.{name}" for name in names)],
        dynamic_shapes=(
            dict.fromkeys(own, dynamic),
            dict.fromkeys(whole, dynamic),
            dict.fromkeys(own, dynamic) if takes_positions else None,
            [{0: dynamic, 2: dynamic} for _ in past],
        ),
    )


def _cache(past: list[Any]) -> Any:
    """A cache that holds the keys and values, without a copy."""
    found = _CACHES.DynamicCache()
    for key, value in zip(past[::2], past[1::2], strict=True):
        layer = _CACHES.DynamicLayer()
        layer.lazy_initialization(key)
        layer.keys, layer.values = key, value
        found.layers.append(layer)
    return found


def _tensors(cache: Any) -> list[Any]:
    """The keys and values of a cache, layer by layer."""
    return [part for layer in cache.layers for part in (layer.keys, layer.values)]
