"""A folder in Hugging Face's form as a file that llama.cpp reads, in float32 or with weights in 8 bits."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scripts.lib.serving.contender import MissingError
from scripts.lib.serving.formats.tensor_file import Array, read_tensors

_GPT2 = {
    "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
}  # fmt: skip
_GPT2_WHOLE = {
    "transformer.wte.weight": "token_embd.weight",
    "transformer.wpe.weight": "position_embd.weight",
    "transformer.ln_f.weight": "output_norm.weight",
    "transformer.ln_f.bias": "output_norm.bias",
}
_QWEN2 = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
_QWEN2_WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def write_gguf(folder: Path, *, eight_bits: bool = False) -> Path:
    """The file of a folder, which is made once. Raises MissingError without the library gguf.

    With ``eight_bits`` all matrices are in llama.cpp's format Q8_0, but for learned positions, as its own tool makes
    them.
    """
    path = folder / ("model.q8_0.gguf" if eight_bits else "model.gguf")
    if path.exists():
        return path
    try:
        import gguf
    except ImportError as error:
        raise MissingError("gguf, which writes the model, is not installed") from error
    config = json.loads((folder / "config.json").read_text())
    gpt2 = config["model_type"] == "gpt2"
    unfinished = path.with_suffix(".part")
    writer = gguf.GGUFWriter(str(unfinished), "gpt2" if gpt2 else "qwen2")
    _write_sizes(writer, config, gpt2)
    writer.add_tokenizer_model("none")
    for name, array in _tensors(read_tensors(folder / "model.safetensors"), gpt2):
        if eight_bits and array.ndim == 2 and not name.startswith("position"):
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(unfinished, path)
    return path


def _write_sizes(writer: Any, config: Mapping[str, Any], gpt2: bool) -> None:
    writer.add_name("decoder")
    writer.add_vocab_size(config["vocab_size"])
    if gpt2:
        writer.add_context_length(config["n_positions"])
        writer.add_embedding_length(config["n_embd"])
        writer.add_feed_forward_length(config["n_inner"])
        writer.add_block_count(config["n_layer"])
        writer.add_head_count(config["n_head"])
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
        return
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])


def _tensors(tensors: Mapping[str, Array], gpt2: bool) -> Iterator[tuple[str, Array]]:
    """The tensors by their names in GGUF. Products are [outputs, inputs]; GPT-2's Conv1D are the other way round."""
    whole, parts = (_GPT2_WHOLE, _GPT2) if gpt2 else (_QWEN2_WHOLE, _QWEN2)
    prefix = "transformer.h." if gpt2 else "model.layers."
    for name, array in tensors.items():
        if name in whole:
            yield whole[name], np.ascontiguousarray(array)
            continue
        layer, _, rest = name.removeprefix(prefix).partition(".")
        part, _, kind = rest.rpartition(".")
        turned = array.T if gpt2 and array.ndim == 2 else array
        yield f"blk.{layer}.{parts[part]}.{kind}", np.ascontiguousarray(turned)
