"""Bodies of requests, without a server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from collage.serve.http.bodies import ChatBody, CommonBody, CompletionBody, parse
from collage.serve.http.errors import ApiError

pytestmark = pytest.mark.usefixtures("needs_server")

CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
COMPLETION = {"model": "m", "prompt": [1]}


def completion(**fields: Any) -> CompletionBody:
    return parse(CompletionBody, json.dumps({**COMPLETION, **fields}).encode())


def chat(**fields: Any) -> ChatBody:
    return parse(ChatBody, json.dumps({**CHAT, **fields}).encode())


@pytest.mark.parametrize(
    "fields",
    [
        {"repetition_penalty": 1.0, "min_p": 0.0, "min_tokens": 0, "length_penalty": 1, "user": "me"},
        {"skip_special_tokens": True, "use_beam_search": False, "early_stopping": None},
        {"stream": True, "stream_options": {"include_obfuscation": False, "continuous_usage_stats": False}},
    ],
)
def test_values_that_change_nothing_are_taken(fields: dict[str, Any]) -> None:
    assert completion(**fields).sampling(1, None) == completion().sampling(1, None)
    assert chat(**fields).sampling(1, None) == chat().sampling(1, None)


def test_values_that_change_nothing_are_taken_in_one_kind_of_request() -> None:
    completion(echo=False, best_of=1, suffix=None)
    chat(tools=[], tool_choice="auto", parallel_tool_calls=True, store=False, metadata={"a": "b"})
    chat(tools=None, tool_choice="none", service_tier="auto", modalities=["text"], safety_identifier="x")
    chat(prompt_cache_key="x", verbosity=None, reasoning_effort=None, response_format={"type": "text"})
    said = {"role": "assistant", "content": "y", "refusal": None, "tool_calls": [], "annotations": []}
    more = {"function_call": None, "audio": None, "reasoning_content": ""}
    assert chat(messages=[{**said, **more}]).messages[0].for_template() == {
        "role": "assistant",
        "content": "y",
    }


@pytest.mark.parametrize(
    ("kind", "fields", "param", "words"),
    [
        (CompletionBody, {"best_of": 3}, "best_of", "best_of can only be 1 or null"),
        (CompletionBody, {"best_of": True}, "best_of", "best_of can only be 1 or null"),
        (CompletionBody, {"echo": 0}, "echo", "echo can only be false or null"),
        (CompletionBody, {"suffix": "x"}, "suffix", "suffix can only be null"),
        (CompletionBody, {"length_penalty": 2}, "length_penalty", "can only be 1 or null"),
        (CompletionBody, {"tools": []}, "tools", "unknown field tools"),
        (CompletionBody, {"neutral": {"x": None}, "x": 1}, "neutral", "unknown field neutral"),
        (CompletionBody, {"default_tokens": 7}, "default_tokens", "unknown field default_tokens"),
        (ChatBody, {"tools": [{"type": "function"}]}, "tools", "tools can only be [] or null"),
        (ChatBody, {"tool_choice": "required"}, "tool_choice", 'can only be "none" or "auto" or null'),
        (ChatBody, {"modalities": ["text", "audio"]}, "modalities", 'can only be ["text"] or null'),
        (
            ChatBody,
            {"messages": [CHAT["messages"][0], {"role": "assistant", "content": "", "tool_calls": [{}]}]},
            "messages",
            "messages.1.tool_calls can only be [] or null",
        ),
        (
            ChatBody,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "y": 1}]}]},
            "messages",
            "unknown field messages.0.content.0.y",
        ),
    ],
    ids=lambda found: json.dumps(found)[:40] if isinstance(found, dict) else None,
)
def test_other_values_are_refused_by_name(
    kind: type[CommonBody], fields: dict[str, Any], param: str, words: str
) -> None:
    usual = CHAT if kind is ChatBody else COMPLETION
    with pytest.raises(ApiError) as caught:
        parse(kind, json.dumps({**usual, **fields}).encode())
    assert (caught.value.status, caught.value.param) == (400, param)
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("kind", "field", "wrong"),
    [
        (CompletionBody, "prompt", [True] * 1000),
        (CompletionBody, "prompt", [[True] * 1000] * 1000),
        (CompletionBody, "stop", [1] * 1000),
        (CompletionBody, "stop_token_ids", ["x"] * 1000),
        (ChatBody, "messages", [1] * 1000),
        (ChatBody, "messages", [{"role": "user", "content": [1] * 1000}]),
    ],
)
def test_a_body_has_few_errors_however_much_is_wrong(
    kind: type[CommonBody], field: str, wrong: object
) -> None:
    usual = CHAT if kind is ChatBody else COMPLETION
    with pytest.raises(ApiError) as caught:
        parse(kind, json.dumps({**usual, field: wrong}).encode())
    assert caught.value.param == field
    cause: Any = caught.value.__cause__
    assert cause.error_count() <= 4  # one for each type that the field may have
