"""The families of decoders: for each a small configuration that is true to what is particular about it.

Nothing of transformers is imported here. A family names its configuration's class, and the fields that differ from
that class's own values. Windows are shorter than the prompts and answers of the sweep, so that they matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scripts.lib.families.errors import UnknownFamilyError

VOCABULARY = 128
"""The tokens of every family."""
WINDOW = 16
"""The tokens that a layer with a window sees."""
_POSITIONS = 256
_FULL, _SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class Family:
    """``config`` is the class of transformers' configuration, and ``fields`` are its arguments.

    ``attention`` is transformers' implementation of attention, or "" for the one that it chooses itself. ``max_length``
    is the option of Collage where the exported file has a limit that Collage does not find.
    """

    name: str
    config: str
    fields: Mapping[str, Any]
    attention: str = ""
    max_length: int | None = None


def chosen(names: Sequence[str]) -> list[Family]:
    """The families of these names in the order of the table, all where there are none. Raises UnknownFamilyError."""
    known = {each.name for each in FAMILIES}
    if unknown := sorted(set(names) - known):
        raise UnknownFamilyError(f"unknown: {', '.join(unknown)}. Valid: {', '.join(sorted(known))}")
    return [each for each in FAMILIES if not names or each.name in names]


_SIZES = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def _usual(name: str, config: str, attention: str = "", **fields: Any) -> Family:
    """A family whose fields have the names of Llama's: two layers, four heads, of which two are of keys and values."""
    usual = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": _POSITIONS,
    }
    return Family(name, config, {**_SIZES, **usual, **fields}, attention)


def _other(name: str, config: str, **fields: Any) -> Family:
    """A family whose fields have names of their own."""
    return Family(name, config, {**_SIZES, **fields})


_NEO_X = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
_GPT_2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": _POSITIONS}
_FALCON = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_hidden_size": 96}
_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
_LLAMA_3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LATENT: dict[str, Any] = {
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}
_LONG_ROPE = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
_TURNS = [_SLIDING, _FULL, _SLIDING, _FULL]

FAMILIES: tuple[Family, ...] = (
    _other("gpt2", "GPT2Config", **_GPT_2),
    _other("gpt2-scaled", "GPT2Config", **_GPT_2, scale_attn_by_inverse_layer_idx=True),
    _other(
        "gpt-neo",
        "GPTNeoConfig",
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        max_position_embeddings=_POSITIONS,
        attention_types=[[["global", "local"], 1]],
        window_size=WINDOW,
    ),
    _other("gpt-neox", "GPTNeoXConfig", **_NEO_X, max_position_embeddings=_POSITIONS, rotary_pct=0.25),
    _other("gptj", "GPTJConfig", **_GPT_2, rotary_dim=8),
    _other("codegen", "CodeGenConfig", **_GPT_2, rotary_dim=8),
    _other("gpt-bigcode", "GPTBigCodeConfig", **_GPT_2, multi_query=True),
    _other("gpt-bigcode-all-heads", "GPTBigCodeConfig", **_GPT_2, multi_query=False),
    _other(
        "opt",
        "OPTConfig",
        hidden_size=64,
        word_embed_proj_dim=64,
        ffn_dim=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=_POSITIONS,
    ),
    _other("bloom", "BloomConfig", hidden_size=64, n_layer=2, n_head=4),
    Family(
        "mpt",
        "MptConfig",
        {
            **_SIZES,
            "d_model": 64,
            "n_heads": 4,
            "n_layers": 2,
            "expansion_ratio": 2,
            "max_seq_len": _POSITIONS,
        },
        max_length=_POSITIONS,
    ),
    _other("falcon-old", "FalconConfig", **_FALCON, multi_query=True, parallel_attn=True, alibi=False),
    _other("falcon-alibi", "FalconConfig", **_FALCON, multi_query=False, parallel_attn=False, alibi=True),
    _other("falcon-new", "FalconConfig", **_FALCON, new_decoder_architecture=True, num_kv_heads=2),
    _other(
        "biogpt",
        "BioGptConfig",
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=_POSITIONS,
    ),
    _other(
        "xglm",
        "XGLMConfig",
        d_model=64,
        ffn_dim=96,
        num_layers=2,
        attention_heads=4,
        max_position_embeddings=_POSITIONS,
    ),
    _other("persimmon", "PersimmonConfig", **_NEO_X, max_position_embeddings=_POSITIONS, qk_layernorm=True),
    _usual("phi", "PhiConfig", partial_rotary_factor=0.5, num_key_value_heads=4),
    _usual("stablelm", "StableLmConfig", partial_rotary_factor=0.25),
    _usual("stablelm-parallel", "StableLmConfig", use_parallel_residual=True),
    _usual("starcoder2", "Starcoder2Config", sliding_window=WINDOW),
    _usual("llama", "LlamaConfig"),
    _usual("llama-3", "LlamaConfig", rope_scaling=_LLAMA_3, head_dim=32, tie_word_embeddings=True),
    _usual("llama-yarn", "LlamaConfig", rope_scaling=_YARN, attention_bias=True),
    _usual("mistral", "MistralConfig", sliding_window=WINDOW),
    _usual(
        "ministral",
        "MinistralConfig",
        head_dim=16,
        sliding_window=WINDOW,
        num_hidden_layers=4,
        layer_types=_TURNS,
    ),
    _usual("mixtral", "MixtralConfig", num_local_experts=4, sliding_window=None),
    _usual("phi3", "Phi3Config", sliding_window=WINDOW),
    _usual(
        "phi3-long",
        "Phi3Config",
        rope_scaling=_LONG_ROPE,
        original_max_position_embeddings=128,
        sliding_window=None,
    ),
    _usual("phi4-partial", "Phi3Config", partial_rotary_factor=0.75, sliding_window=None, head_dim=16),
    _usual("qwen2", "Qwen2Config"),
    _usual(
        "qwen2-window",
        "Qwen2Config",
        use_sliding_window=True,
        sliding_window=WINDOW,
        max_window_layers=2,
        num_hidden_layers=4,
    ),
    _usual("qwen3", "Qwen3Config", head_dim=32),
    _usual(
        "qwen2-moe", "Qwen2MoeConfig", **_EXPERTS, shared_expert_intermediate_size=48, decoder_sparse_step=1
    ),
    _usual("qwen3-moe", "Qwen3MoeConfig", **_EXPERTS, head_dim=32, decoder_sparse_step=1),
    _usual("gemma", "GemmaConfig", head_dim=32, num_key_value_heads=1),
    _usual(
        "gemma2",
        "Gemma2Config",
        attention="eager",
        head_dim=32,
        sliding_window=WINDOW,
        query_pre_attn_scalar=24,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=10.0,
        num_hidden_layers=4,
    ),
    _usual(
        "gemma3",
        "Gemma3TextConfig",
        head_dim=32,
        sliding_window=WINDOW,
        query_pre_attn_scalar=24,
        num_hidden_layers=4,
        layer_types=_TURNS,
    ),
    _usual(
        "vaultgemma",
        "VaultGemmaConfig",
        attention="eager",
        head_dim=32,
        sliding_window=WINDOW,
        query_pre_attn_scalar=24,
    ),
    _usual("cohere", "CohereConfig", use_qk_norm=False, logit_scale=0.25),
    _usual("cohere-qk-norm", "CohereConfig", use_qk_norm=True, logit_scale=0.25),
    _usual("cohere2", "Cohere2Config", sliding_window=WINDOW, num_hidden_layers=4, layer_types=_TURNS),
    _usual("olmo", "OlmoConfig", clip_qkv=4.0),
    _usual("olmo2", "Olmo2Config"),
    _usual("olmo3", "Olmo3Config", sliding_window=WINDOW, num_hidden_layers=4, layer_types=_TURNS),
    _usual("olmoe", "OlmoeConfig", num_experts=4, num_experts_per_tok=2),
    _usual(
        "granite",
        "GraniteConfig",
        attention_multiplier=0.2,
        residual_multiplier=0.5,
        embedding_multiplier=3.0,
        logits_scaling=2.0,
    ),
    _usual("granite-moe", "GraniteMoeConfig", num_local_experts=4, attention_multiplier=0.2),
    _usual("helium", "HeliumConfig", head_dim=16),
    _usual("nemotron", "NemotronConfig", partial_rotary_factor=0.5, head_dim=16),
    _usual("arcee", "ArceeConfig"),
    _usual("smollm3", "SmolLM3Config", num_hidden_layers=4, no_rope_layer_interval=2),
    _usual("glm", "GlmConfig", partial_rotary_factor=0.5, head_dim=16),
    _usual("glm4", "Glm4Config", partial_rotary_factor=0.5, head_dim=16),
    _usual("ernie4.5", "Ernie4_5Config", head_dim=16),
    _usual("exaone4", "Exaone4Config", sliding_window=WINDOW, num_hidden_layers=4, layer_types=_TURNS),
    _usual("seed-oss", "SeedOssConfig", head_dim=16),
    _usual("hunyuan", "HunYuanDenseV1Config", head_dim=16),
    _usual("apertus", "ApertusConfig"),
    _usual("bitnet", "BitNetConfig"),
    _usual("diffllama", "DiffLlamaConfig", attention="eager"),
    _usual(
        "gpt-oss",
        "GptOssConfig",
        head_dim=16,
        sliding_window=WINDOW,
        num_local_experts=4,
        rope_scaling={**_YARN, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
    ),
    _usual("deepseek-v2", "DeepseekV2Config", **_LATENT, num_key_value_heads=4, first_k_dense_replace=2),
    _usual("deepseek-v3", "DeepseekV3Config", **_LATENT, num_key_value_heads=4, first_k_dense_replace=2),
    _usual(
        "deepseek-v3-experts",
        "DeepseekV3Config",
        **_LATENT,
        num_key_value_heads=4,
        first_k_dense_replace=1,
        n_routed_experts=8,
        n_group=4,
        topk_group=2,
        num_experts_per_tok=2,
        moe_intermediate_size=48,
    ),
    _usual(
        "deepseek-v3-one-size",
        "DeepseekV3Config",
        **{**_LATENT, "v_head_dim": 24},
        num_key_value_heads=4,
        first_k_dense_replace=2,
    ),
)
