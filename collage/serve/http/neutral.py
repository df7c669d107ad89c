"""Fields of other servers and of OpenAI's API that change nothing here, and which of their values do not."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from collage.serve.http.errors import bad_request

Neutral = Mapping[str, "Collection[object] | None"]
"""The values of each field that are as good as null, which always is: it is as if the field were not there. None
stands for all values."""

_BODY: Neutral = {
    "user": None,
    "length_penalty": (1,),
    "skip_special_tokens": (True,),
    "use_beam_search": (False,),
    "early_stopping": (False,),
}
COMPLETION: Neutral = {**_BODY, "echo": (False,), "best_of": (1,), "suffix": ()}
CHAT: Neutral = {
    **_BODY,
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": None,
    "store": (False,),
    "metadata": None,
    "service_tier": None,
    "safety_identifier": None,
    "prompt_cache_key": None,
    "verbosity": (),
    "reasoning_effort": (),
}
STREAM_OPTIONS: Neutral = {"include_obfuscation": (False,), "continuous_usage_stats": (False,)}
MESSAGE: Neutral = {
    "refusal": ("",),
    "tool_calls": ([],),
    "function_call": ({},),
    "audio": ({},),
    "annotations": ([],),
    "reasoning_content": ("",),
}
"""What answers have, and what clients therefore send back."""


def check_neutral(path: str, name: str, value: object, neutral: Neutral, known: Collection[str]) -> None:
    """Raise ApiError unless a field that is not ``known`` has a neutral value; ``path`` is where it is in the body."""
    field = path.partition(".")[0]
    if name not in neutral:
        raise bad_request(f"unknown field {path}. Valid: {', '.join(sorted(known))}.", field, "unknown_field")
    values = neutral[name]
    if values is None or value is None or any(_same(value, each) for each in values):
        return
    shown = " or ".join([*(json.dumps(each) for each in values), "null"])
    raise bad_request(f"{path} can only be {shown} on this server.", field, "unsupported_value")


def _same(value: object, other: object) -> bool:
    """Whether two values are equal in JSON, where true is not 1."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)
