"""The client library of OpenAI against a real server: answers, streams, usage, errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from scripts.lib.decoders.byte_tokenizer import END
from tests.helpers.serve.served import CONFIG, Served, greedy

openai = pytest.importorskip("openai", reason="openai is missing: pip install openai")
pytestmark = pytest.mark.usefixtures("needs_server")

PROMPT = tuple(b"Once upon a time")


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[Any]:
    with openai.OpenAI(
        base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0, timeout=60
    ) as found:
        yield found


@pytest.fixture(scope="module")
def prompt(server: Served, client: Any) -> tuple[int, ...]:
    """The ids of the text, which are not its bytes, as the tokenizer sorts them otherwise."""
    from tokenizers import Tokenizer

    file = server.log.parent / "model" / "tokenizer.json"
    return tuple(Tokenizer.from_file(str(file)).encode("Once upon a time").ids)


def test_a_text_is_answered_by_the_model(client: Any, prompt: tuple[int, ...]) -> None:
    found = client.completions.create(model="m", prompt="Once upon a time", max_tokens=12, temperature=0)
    expected = greedy(CONFIG, prompt, 12, END)
    assert found.choices[0].token_ids == list(expected)
    assert found.choices[0].finish_reason == ("stop" if expected[-1] == END else "length")
    assert found.usage.prompt_tokens == len(prompt)
    assert found.usage.completion_tokens == len(expected)
    assert found.usage.total_tokens == len(prompt) + len(expected)


def test_token_ids_are_accepted_as_they_are(client: Any) -> None:
    found = client.completions.create(
        model="m", prompt=[[1, 2, 3], [4, 5]], max_tokens=6, temperature=0, extra_body={"ignore_eos": True}
    )
    assert [each.token_ids for each in found.choices] == [
        list(greedy(CONFIG, ids, 6, None)) for ids in ((1, 2, 3), (4, 5))
    ]
    assert found.usage.prompt_tokens == 5


@pytest.mark.parametrize("seed", range(4))
def test_a_stream_has_the_text_of_the_whole_answer(client: Any, seed: int) -> None:
    asked = {"model": "m", "prompt": "Hello", "max_tokens": 40, "seed": seed, "temperature": 1.3}
    whole = client.completions.create(**asked)
    chunks = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    parts = [each.choices[0] for each in chunks[:-1]]
    assert "".join(each.text for each in parts) == whole.choices[0].text
    assert [token for each in parts for token in each.token_ids] == whole.choices[0].token_ids
    assert [each.finish_reason for each in parts[:-1]] == [None] * (len(parts) - 1)
    assert parts[-1].finish_reason == whole.choices[0].finish_reason
    assert len(parts) > 1


def test_stop_texts(client: Any, server: Served) -> None:
    asked = {"model": "m", "prompt": "Hello", "max_tokens": 60, "seed": 1}
    text = client.completions.create(**asked).choices[0].text
    stop = next(text[i : i + 2] for i in range(8, len(text)) if text.find(text[i : i + 2]) == i)
    before = server.metric("generated_tokens_total")
    found = client.completions.create(**asked, stop=["no such text", stop])
    assert server.metric("generated_tokens_total") == before + found.usage.completion_tokens
    assert found.choices[0].text == text[: text.index(stop)]
    assert found.choices[0].finish_reason == "stop"
    chunks = client.completions.create(**asked, stop=stop, stream=True)
    assert "".join(each.choices[0].text for each in chunks) == text[: text.index(stop)]


def test_log_probabilities(client: Any) -> None:
    asked = {"model": "m", "prompt": [1, 2, 3], "max_tokens": 5, "temperature": 0}
    found = client.completions.create(**asked, logprobs=3).choices[0].logprobs
    assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs) == 5
    for name, value, top in zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True):
        assert top[name] == max(top.values()) == value < 0
    chunks = list(client.completions.create(**asked, logprobs=3, stream=True))
    streamed = [value for each in chunks for value in each.choices[0].logprobs.token_logprobs]
    assert streamed == found.token_logprobs


def test_several_answers_are_those_of_their_seeds(client: Any) -> None:
    asked = {"model": "m", "prompt": "a long enough beginning " * 3, "max_tokens": 8}
    found = client.completions.create(**asked, n=3, seed=7)
    texts = [each.text for each in sorted(found.choices, key=lambda each: each.index)]
    singles = [client.completions.create(**asked, seed=7 + i).choices[0].text for i in range(3)]
    assert texts == singles
    assert len(set(texts)) == 3
    streamed = ["", "", ""]
    for chunk in client.completions.create(**asked, n=3, seed=7, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == texts
    assert found.usage.prompt_tokens == len("a long enough beginning " * 3)


def test_a_chat(client: Any) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    asked = {"model": "m", "messages": messages, "max_completion_tokens": 10, "temperature": 0}
    found = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
    choice = found.choices[0]
    assert choice.message.role == "assistant"
    assert len(choice.logprobs.content) == found.usage.completion_tokens
    assert all(len(each.top_logprobs) == 2 for each in choice.logprobs.content)
    user, assistant, end = 257, 258, END
    from tokenizers import pre_tokenizers

    names = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = (user, names.index("H"), names.index("i"), end, assistant)
    assert found.usage.prompt_tokens == len(ids)
    assert choice.token_ids == list(greedy(CONFIG, ids, 10, END))
    chunks = list(client.chat.completions.create(**asked, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(each.choices[0].delta.content or "" for each in chunks) == choice.message.content
    assert chunks[-1].choices[0].finish_reason == choice.finish_reason


def test_a_chat_of_several_turns(client: Any) -> None:
    messages: list[Any] = [{"role": "user", "content": "Hi"}]
    asked = {"model": "m", "max_completion_tokens": 8, "seed": 1}
    first = client.chat.completions.create(**asked, messages=messages)
    assert first.choices[0].message.content
    messages += [first.choices[0].message, {"role": "user", "content": "And?"}]
    second = client.chat.completions.create(**asked, messages=messages)
    assert second.usage.prompt_tokens > first.usage.prompt_tokens + len(" And?")


def test_a_stream_of_a_chat_has_log_probabilities_and_usage(client: Any) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    asked = {"model": "m", "messages": messages, "max_tokens": 10, "seed": 4, "logprobs": True}
    whole = client.chat.completions.create(**asked, top_logprobs=1)
    *chunks, last = client.chat.completions.create(
        **asked, top_logprobs=1, stream=True, stream_options={"include_usage": True}
    )
    assert last.choices == []
    assert last.usage == whole.usage
    assert all(each.usage is None and "usage" in each.model_fields_set for each in chunks)
    streamed = [entry for each in chunks for entry in each.choices[0].logprobs.content]
    assert streamed == whole.choices[0].logprobs.content
    assert len(streamed) == whole.usage.completion_tokens
    assert all(len(each.top_logprobs) == 1 for each in streamed)
    without = list(client.chat.completions.create(**asked, stream=True))
    assert not any("usage" in each.model_fields_set for each in without)


def test_how_tokens_are_chosen(client: Any) -> None:
    def tokens(**changes: Any) -> list[int]:
        names = ("top_k", "min_p", "repetition_penalty", "min_tokens", "stop_token_ids")
        ours = {name: changes.pop(name) for name in names if name in changes}
        found = client.completions.create(
            **{"model": "m", "prompt": [1, 2, 3], "max_tokens": 6, "temperature": 0, **changes},
            extra_body={"ignore_eos": True, **ours},
        )
        ids: list[int] = found.choices[0].token_ids
        return ids

    usual = list(greedy(CONFIG, (1, 2, 3), 6, None))
    assert tokens() == usual
    assert tokens(temperature=2, top_k=1) == usual
    assert tokens(temperature=2, min_p=1) == usual
    assert tokens(temperature=2, seed=1) != usual
    assert tokens(logit_bias={"7": 100}) == [7] * 6
    assert tokens(logit_bias={str(usual[0]): -100})[0] != usual[0]
    assert tokens(logit_bias={"7": 100}, frequency_penalty=60)[:3].count(7) == 2
    assert tokens(logit_bias={"7": 100}, presence_penalty=60) == [7] * 6
    assert tokens(logit_bias={"7": 100}, presence_penalty=100)[:2].count(7) == 1
    end = usual.index(usual[3])
    assert tokens(stop_token_ids=[usual[3]]) == usual[: end + 1]
    longer = tokens(stop_token_ids=[usual[3]], min_tokens=6)
    assert len(longer) == 6 and usual[3] not in longer
    new = tokens(logit_bias={"7": 1}, repetition_penalty=100, max_tokens=20)
    assert len(set(new)) == 20 and not {1, 2, 3} & set(new)
    with pytest.raises(openai.BadRequestError, match="min_tokens is 7"):
        tokens(min_tokens=7)


def test_models(client: Any) -> None:
    assert [each.id for each in client.models.list()] == ["m"]
    assert client.models.retrieve("m").max_model_len == CONFIG.max_length
    with pytest.raises(openai.NotFoundError, match="this server has 'm'"):
        client.models.retrieve("gpt")


def test_errors_are_those_of_the_client_library(client: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="this model's most is 256") as caught:
        client.completions.create(model="m", prompt=[1] * 250, max_tokens=7)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.completions.create(model="other", prompt="x")
    with pytest.raises(openai.BadRequestError, match="unknown field nonsense") as caught:
        client.completions.create(model="m", prompt="x", extra_body={"nonsense": 1})
    assert caught.value.param == "nonsense"
    with pytest.raises(openai.BadRequestError, match="temperature is -1"):
        client.completions.create(model="m", prompt="x", temperature=-1)
    with pytest.raises(openai.BadRequestError, match="the system speaks first"):
        client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "x"}, {"role": "system", "content": "y"}],
        )
    with pytest.raises(openai.APIStatusError) as late:
        client.completions.create(
            model="m", prompt="x", max_tokens=200, extra_body={"timeout_s": 0.001, "ignore_eos": True}
        )
    assert late.value.status_code == 408
