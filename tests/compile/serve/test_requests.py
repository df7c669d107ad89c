"""Bodies of requests, jobs made of them, their streams, and the link to the engine's process, without a server."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import pytest

from collage.serve.http import link as link_module
from collage.serve.http.app import _EventStream
from collage.serve.http.bodies import ApiError, ChatBody, CommonBody, CompletionBody, parse
from collage.serve.http.link import Link
from collage.serve.http.messages import EngineSetup, ModelReady, packed
from collage.serve.http.metrics import Metrics
from collage.serve.http.service import Service
from collage.serve.options import EngineOptions
from collage.serve.request import Event, Finish, Request
from collage.serve.sampling import Sampling
from collage.serve.text import Output
from collage.serve.tokenizer import DecimalTokenizer

pytestmark = pytest.mark.usefixtures("needs_server")

SIZES = ModelReady(block_tokens=16, block_count=4, max_length=256, vocabulary=1000, most_open=8)
CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
COMPLETION = {"model": "m", "prompt": [1]}


def completion(**fields: Any) -> CompletionBody:
    return parse(CompletionBody, json.dumps({**COMPLETION, **fields}).encode())


def chat(**fields: Any) -> ChatBody:
    return parse(ChatBody, json.dumps({**CHAT, **fields}).encode())


@pytest.mark.parametrize(
    "fields",
    [
        {"repetition_penalty": 1.0, "min_p": 0, "min_tokens": None, "length_penalty": 1, "user": "me"},
        {"stream": True, "stream_options": {"include_obfuscation": False, "continuous_usage_stats": False}},
    ],
)
def test_values_that_change_nothing_are_taken(fields: dict[str, Any]) -> None:
    assert completion(**fields).sampling(None) == completion().sampling(None)
    assert chat(**fields).sampling(None) == chat().sampling(None)


def test_values_that_change_nothing_are_taken_in_one_kind_of_request() -> None:
    completion(echo=False, best_of=1, suffix=None)
    chat(tools=[], tool_choice="auto", parallel_tool_calls=True, store=False, metadata={"a": "b"})
    chat(tools=None, tool_choice="none", service_tier="auto", modalities=["text"], safety_identifier="x")
    chat(prompt_cache_key="x", verbosity=None, reasoning_effort=None, response_format={"type": "text"})
    answer = {"role": "assistant", "content": "y", "refusal": None, "tool_calls": [], "annotations": []}
    more = {"function_call": None, "audio": None, "reasoning_content": ""}
    assert chat(messages=[{**answer, **more}]).messages[0].for_template() == {
        "role": "assistant",
        "content": "y",
    }


@pytest.mark.parametrize(
    ("kind", "fields", "param", "words"),
    [
        (CompletionBody, {"best_of": 3}, "best_of", "best_of can only be 1 or null"),
        (CompletionBody, {"best_of": True}, "best_of", "best_of can only be 1 or null"),
        (CompletionBody, {"tools": []}, "tools", "unknown field tools"),
        (CompletionBody, {"neutral": {"x": None}, "x": 1}, "neutral", "unknown field neutral"),
        (ChatBody, {"tools": [{"type": "function"}]}, "tools", "tools can only be [] or null"),
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


def said(*content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": each} for each in content]}


PICTURE = {"type": "image_url", "image_url": {"url": "data:"}}
TEXTS = "must be a text or a list of text parts"


@pytest.mark.parametrize(
    ("kind", "fields", "param", "words"),
    [
        (ChatBody, {"messages": []}, "messages", "messages is empty"),
        (ChatBody, said("x", [PICTURE]), "messages", "messages.1.content.0 is no text: this model takes"),
        (ChatBody, said(None), "messages", f"messages.0.content {TEXTS}"),
        (ChatBody, said([{"type": "text"}]), "messages", "messages.0.content.0.text is missing"),
        (ChatBody, {"messages": [{"content": "x"}]}, "messages", "messages.0.role is missing"),
        (
            ChatBody,
            {"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]},
            "messages",
            "messages.0.role must be 'system', 'developer', 'user' or 'assistant'",
        ),
        (ChatBody, {"max_completion_tokens": -1}, "max_completion_tokens", "max_completion_tokens is -1"),
        (ChatBody, {"logprobs": True, "top_logprobs": 21}, "top_logprobs", "top_logprobs is 21"),
        (CompletionBody, {"prompt": ""}, "prompt", "the prompt is empty"),
        (CompletionBody, {"prompt": [1.5]}, "prompt", "prompt must be a text, texts, token ids, or lists"),
        (CompletionBody, {"prompt": [1000]}, "prompt", "the prompt has the token 1000"),
        (CompletionBody, {"n": 0}, "n", "n is 0"),
        (CompletionBody, {"max_tokens": 1e300}, "max_tokens", "max_tokens must be a whole number"),
        (CompletionBody, {"temperature": "hot"}, "temperature", "temperature must be a number"),
        (CompletionBody, {"top_p": 2}, "top_p", "top_p is 2"),
        (CompletionBody, {"stop": 5}, "stop", "stop must be a text or a list of texts"),
        (CompletionBody, {"stop": [""]}, "stop", "stop has an empty text"),
        (CompletionBody, {"stop_token_ids": [1000]}, "stop_token_ids", "there is no token 1000"),
        (CompletionBody, {"logit_bias": []}, "logit_bias", "logit_bias must be an object"),
        (CompletionBody, {"cache_salt": "x" * 257}, "cache_salt", "cache_salt has more than 256 characters"),
        (CompletionBody, {"logit_bias": {"1": 101}}, "logit_bias", "a bias of logit_bias is 101"),
    ],
    ids=lambda found: json.dumps(found)[:60] if isinstance(found, dict) else None,
)
def test_what_is_wrong_is_named_in_plain_words(
    service: Service, kind: type[CommonBody], fields: dict[str, Any], param: str, words: str
) -> None:
    usual = CHAT if kind is ChatBody else COMPLETION

    async def ask() -> None:
        body = parse(kind, json.dumps({**usual, **fields}).encode())
        if isinstance(body, ChatBody):
            assert body.given_messages
            await service.job(body, [(1,)], body.most_tokens, body.most_logprobs)
        else:
            assert isinstance(body, CompletionBody)
            await service.job(body, body.prompts, body.max_tokens, body.logprobs)

    with pytest.raises(ApiError) as caught:
        asyncio.run(ask())
    assert (caught.value.status, caught.value.param) == (400, param)
    assert words in caught.value.message
    assert "nput should" not in caught.value.message


@pytest.mark.parametrize(
    ("kind", "field", "wrong"),
    [
        (CompletionBody, "prompt", [True] * 1000),
        (ChatBody, "messages", [1] * 1000),
        (ChatBody, "messages", [{"role": "user", "content": [1] * 1000}]),
    ],
)
def test_a_body_has_few_errors_however_much_is_wrong(kind: type[CommonBody], field: str, wrong: object) -> None:
    usual = CHAT if kind is ChatBody else COMPLETION
    with pytest.raises(ApiError) as caught:
        parse(kind, json.dumps({**usual, field: wrong}).encode())
    assert caught.value.param == field
    cause: Any = caught.value.__cause__
    assert cause.error_count() <= 4  # one for each type that the field may have


class Encoder(DecimalTokenizer):
    """A tokenizer that tells what it has encoded."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        self.seen.append(text)
        return super().encode(text, special=special)


class Sent:
    """A link whose engine never answers."""

    sizes = SIZES

    def __init__(self) -> None:
        self.ids = 0
        self.submitted: list[Request] = []
        self.cancelled: list[list[int]] = []

    def new_id(self) -> int:
        self.ids += 1
        return self.ids

    def submit(self, requests: list[Request], sink: asyncio.Queue[Event]) -> None:
        self.submitted += requests
        sink.put_nowait(Event(requests[0].id, token=1))

    def cancel(self, ids: Sequence[int]) -> None:
        self.cancelled.append(list(ids))


@pytest.fixture
def encoder() -> Encoder:
    return Encoder()


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
def service(encoder: Encoder, sent: Sent) -> Service:
    return Service("m", encoder, None, sent, Metrics())  # type: ignore[arg-type]


async def ask(service: Service, body: CompletionBody) -> list[int]:
    """The most tokens of each answer to a body."""
    job = await service.job(body, body.prompts, body.max_tokens, body.logprobs)
    return [each.sampling.max_tokens for each in job._requests]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ["1"] * 9}, "prompt"),
        ({"prompt": "1", "n": 9}, "n"),
    ],
)
def test_too_many_answers_are_refused_before_texts_are_encoded(
    service: Service, encoder: Encoder, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(ApiError, match="answers") as caught:
        asyncio.run(ask(service, completion(**fields)))
    assert (caught.value.status, caught.value.param) == (400, param)
    assert encoder.seen == []


def test_what_is_far_too_long_is_refused_before_it_is_encoded(service: Service, encoder: Encoder) -> None:
    for prompt in ("1 " * 100_000, [1] * 1000):
        with pytest.raises(ApiError, match="takes 64 tokens with the answer") as caught:
            asyncio.run(ask(service, completion(prompt=prompt)))
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
    assert encoder.seen == []


def test_an_answer_is_as_long_as_the_cache_has_room(service: Service) -> None:
    assert service.max_length == 64
    assert asyncio.run(ask(service, completion())) == [16]
    assert asyncio.run(ask(service, completion(prompt=[[1] * 60, [1] * 10]))) == [4, 16]
    assert asyncio.run(ask(service, completion(max_tokens=63))) == [63]
    for fields in ({"max_tokens": 64}, {"prompt": [1] * 64}):
        with pytest.raises(ApiError, match="the cache has room for 64") as caught:
            asyncio.run(ask(service, completion(**fields)))
        assert caught.value.code == "context_length_exceeded"


def test_answers_that_nobody_reads_are_cancelled_together(service: Service, sent: Sent) -> None:
    async def leave() -> None:
        body = completion(prompt=[[1], [2]], n=2)
        job = await service.job(body, body.prompts, None, None)
        deltas = job.deltas()
        await anext(deltas)
        await deltas.aclose()

    asyncio.run(leave())
    assert len(sent.submitted) == 4
    assert sent.cancelled == [[each.id for each in sent.submitted]]


def test_a_client_that_leaves_before_the_head_of_a_stream_ends_its_request() -> None:
    """Nothing of the stream has been sent then, so nothing of what makes its events has begun."""
    ended = []

    async def deltas() -> AsyncGenerator[tuple[int, Output], None]:
        try:
            while True:
                yield 0, Output(text="x")
        finally:
            ended.append(True)

    async def events() -> AsyncGenerator[bytes, None]:
        yield b""

    async def receive() -> dict[str, str]:
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def send(message: object) -> None:
        raise OSError

    async def run() -> None:
        begun = deltas()
        await anext(begun)
        await _EventStream(events(), begun)({}, receive, send)
        assert ended == [True]

    asyncio.run(run())


def engine(monkeypatch: pytest.MonkeyPatch, *scripts: str) -> list[str]:
    """Let each engine's process run the next of these scripts, which have a connection. Returns those that are left."""
    left = list(scripts)
    head = "import socket, sys, time; connection = socket.socket(fileno=int(sys.argv[1])); "

    def command(module: str, descriptor: int) -> list[str]:
        return [sys.executable, "-S", "-E", "-c", head + left.pop(0), str(descriptor)]

    monkeypatch.setattr(link_module, "command_for", command)
    return left


UNTIL_STOP = "\nwhile b'Stop' not in connection.recv(1 << 20): pass"


def new_link() -> Link:
    return Link(EngineSetup(Path("m"), EngineOptions(), Path(".")), lambda batch: None, stall_s=0.1)


def test_a_process_that_hangs_while_it_loads_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = f"connection.sendall({packed(SIZES)!r}); "
    left = engine(
        monkeypatch,
        ready + "connection.recv(1 << 20)",
        "time.sleep(600)",
        ready + UNTIL_STOP,
    )

    async def run() -> None:
        link = new_link()
        await link.start()
        problems = set()
        end_s = time.monotonic() + 30
        while left or not link.up:
            assert time.monotonic() < end_s
            problems.add(link.problem)
            await asyncio.sleep(0.01)
        assert any("has not loaded m in" in each for each in problems)
        assert link.problem == ""
        await link.stop()

    asyncio.run(run())


def test_a_process_that_does_nothing_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = f"connection.sendall({packed(SIZES)!r}); "
    left = engine(monkeypatch, ready + "time.sleep(600)", ready + UNTIL_STOP)

    async def run() -> None:
        link = new_link()
        await link.start()
        events: asyncio.Queue[Event] = asyncio.Queue()
        link.submit([Request(link.new_id(), (1,), Sampling())], events)
        event = await asyncio.wait_for(events.get(), 30)
        assert event.finish is Finish.FAILED and "did nothing for 0.1 s" in event.error
        end_s = time.monotonic() + 30
        while left or not link.up:
            assert time.monotonic() < end_s
            await asyncio.sleep(0.01)
        await link.stop()

    asyncio.run(run())
