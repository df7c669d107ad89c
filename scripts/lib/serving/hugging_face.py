"""A decoder of ``scripts/models`` as Hugging Face's libraries read it: the same function, from the same weights."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from scripts.lib.decoders.build import EPSILON, SHARPNESS, TIED
from scripts.lib.decoders.shape import GPT2, DecoderShape

Array = npt.NDArray[np.float32]


def write_folder(model: Path, shape: DecoderShape, folder: Path) -> None:
    """Write config.json, the weights of the ONNX file ``model``, and a tokenizer whose words are ids in decimal."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {each.name: numpy_helper.to_array(each) for each in onnx.load(str(model)).graph.initializer}
    gpt2 = shape.family == GPT2
    tensors = dict((_gpt2 if gpt2 else _qwen2)(shape, weights.__getitem__))
    _write_tensors(folder / "model.safetensors", tensors)
    end = shape.vocabulary - 1
    config = {
        **(_gpt2_config(shape) if gpt2 else _qwen2_config(shape)),
        **{"dtype": "float32", "vocab_size": shape.vocabulary, "bos_token_id": end, "eos_token_id": end},
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "generation_config.json").write_text("{}")
    _write_tokenizer(folder, shape.vocabulary)


Weight = Callable[[str], Array]


def _gpt2(shape: DecoderShape, weight: Weight) -> Iterator[tuple[str, Array]]:
    """GPT-2's tensors. Its products are Conv1D, whose weights are [inputs, outputs] as in ONNX.

    Its last projection is the embedding times a number. The number goes into the last norm, so that both stay one.
    """
    yield "transformer.wte.weight", weight("model.embed_tokens")
    yield "transformer.wpe.weight", weight("model.embed_positions")
    for layer in range(shape.layers):
        mine, its = f"model.layers.{layer}", f"transformer.h.{layer}"
        for norm, name in (("norm1", "ln_1"), ("norm2", "ln_2")):
            for part in ("weight", "bias"):
                yield f"{its}.{name}.{part}", weight(f"{mine}.{norm}.{part}")
        products = (
            ("attn.c_attn", "attn.c_attn"), ("attn.out", "attn.c_proj"),
            ("mlp.fc", "mlp.c_fc"), ("mlp.proj", "mlp.c_proj"),
        )  # fmt: skip
        for product, name in products:
            yield f"{its}.{name}.weight", weight(f"{mine}.{product}")
            yield f"{its}.{name}.bias", weight(f"{mine}.{product}.bias")
    factor = np.float32(SHARPNESS / math.sqrt(shape.width) / TIED)
    for part in ("weight", "bias"):
        yield f"transformer.ln_f.{part}", weight(f"model.norm.{part}") * factor


def _gpt2_config(shape: DecoderShape) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new",
        "layer_norm_epsilon": EPSILON, "n_ctx": shape.positions, "n_positions": shape.positions,
        "n_embd": shape.width, "n_head": shape.heads, "n_inner": shape.inner, "n_layer": shape.layers,
        "tie_word_embeddings": True,
    }  # fmt: skip


def _qwen2(shape: DecoderShape, weight: Weight) -> Iterator[tuple[str, Array]]:
    """Qwen2's tensors. Its products are Linear, whose weights are [outputs, inputs]."""
    yield "model.embed_tokens.weight", weight("model.embed_tokens")
    for layer in range(shape.layers):
        mine, its = f"model.layers.{layer}", f"model.layers.{layer}"
        yield f"{its}.input_layernorm.weight", weight(f"{mine}.norm1.weight")
        yield f"{its}.post_attention_layernorm.weight", weight(f"{mine}.norm2.weight")
        for name in "qkv":
            yield f"{its}.self_attn.{name}_proj.weight", weight(f"{mine}.attn.{name}").T
            yield f"{its}.self_attn.{name}_proj.bias", weight(f"{mine}.attn.{name}.bias")
        yield f"{its}.self_attn.o_proj.weight", weight(f"{mine}.attn.out").T
        for name in ("gate", "up", "down"):
            yield f"{its}.mlp.{name}_proj.weight", weight(f"{mine}.mlp.{name}").T
    yield "model.norm.weight", weight("model.norm.weight")
    yield "lm_head.weight", weight("model.lm_head").T


def _qwen2_config(shape: DecoderShape) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu",
        "rms_norm_eps": EPSILON, "max_position_embeddings": shape.positions, "hidden_size": shape.width,
        "intermediate_size": shape.inner, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "rope_theta": 10000.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "use_sliding_window": False,
        "tie_word_embeddings": False,
    }  # fmt: skip


def _write_tokenizer(folder: Path, vocabulary: int) -> None:
    """A tokenizer for converters that want one: a word for each id, which is the id in decimal."""
    model = {"type": "WordLevel", "vocab": {str(each): each for each in range(vocabulary)}, "unk_token": "0"}
    text: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
    }
    text |= dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    (folder / "tokenizer.json").write_text(json.dumps({**text, "model": model}))
    end = str(vocabulary - 1)
    names = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "0",
        "bos_token": end,
        "eos_token": end,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(names))


def _write_tensors(path: Path, tensors: Mapping[str, Array]) -> None:
    """Write float32 tensors in the format safetensors: a header in JSON, and the tensors behind it."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, array in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for array in tensors.values():
            stream.write(np.ascontiguousarray(array, np.float32).data)
