"""A tokenizer whose tokens are bytes, with three special ones behind them, and a chat template."""

from __future__ import annotations

import json
from pathlib import Path

END = 256
"""The token that ends a message and an answer."""
SIZE = 259
"""The number of its tokens."""
_SPECIAL = ("<|end|>", "<|user|>", "<|assistant|>")
_TEMPLATE = """
{%- for message in messages %}
{%- if message.role == 'system' and not loop.first %}{{ raise_exception('the system speaks first') }}{% endif %}
{{- '<|user|>' if message.role == 'user' else '<|assistant|>' }}{{ message.content }}{{ eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}
""".strip()


def write_byte_tokenizer(folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json into a model's folder."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    names = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(name, special=True) for name in _SPECIAL])
    made.save(str(folder / "tokenizer.json"))
    config = {"eos_token": _SPECIAL[0], "chat_template": _TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
