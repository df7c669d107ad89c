"""The objects of OpenAI's API that answers are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from collage.serve.http.service import HttpJob, Service
from collage.serve.text import Output
from collage.serve.tokenizer import Tokenizer

_LEAST_LOGPROB = -9999.0
"""What OpenAI's API has for a probability of 0, as JSON has no infinity."""


class AnswerShape:
    """How one of the two kinds of answers looks: as one object, and as the objects of a stream."""

    prefix: str
    whole_name: str
    chunk_name: str

    def __init__(self, service: Service) -> None:
        self._service = service

    def whole(self, job: HttpJob, deltas: Sequence[Sequence[Output]]) -> dict[str, Any]:
        """The answer as one object, from the outputs of each answer."""
        choices = [self._whole_choice(number, _joined(each)) for number, each in enumerate(deltas)]
        return {**self._head(job, self.whole_name), "choices": choices, "usage": job.usage()}

    def chunk(self, job: HttpJob, number: int, delta: Output) -> dict[str, Any]:
        return {**self._head(job, self.chunk_name), "choices": [self._chunk_choice(number, delta)]}

    def last(self, job: HttpJob) -> dict[str, Any]:
        """The object at the end of a stream, which has its usage."""
        return {**self._head(job, self.chunk_name), "choices": [], "usage": job.usage()}

    def _head(self, job: HttpJob, name: str) -> dict[str, Any]:
        return {
            "id": f"{self.prefix}-{job.id}",
            "object": name,
            "created": job.created,
            "model": self._service.name,
        }

    def _choice(self, number: int, delta: Output, content: dict[str, Any], logprobs: object) -> dict[str, Any]:
        return {
            "index": number,
            **content,
            "logprobs": logprobs,
            "finish_reason": None if delta.finish is None else delta.finish.value,
            "token_ids": list(delta.tokens),
        }

    def _whole_choice(self, number: int, delta: Output) -> dict[str, Any]:
        raise NotImplementedError

    def _chunk_choice(self, number: int, delta: Output) -> dict[str, Any]:
        raise NotImplementedError


class CompletionShape(AnswerShape):
    prefix, whole_name, chunk_name = "cmpl", "text_completion", "text_completion"

    def _whole_choice(self, number: int, delta: Output) -> dict[str, Any]:
        return self._choice(number, delta, {"text": delta.text}, self._logprobs(delta))

    _chunk_choice = _whole_choice

    def _logprobs(self, delta: Output) -> dict[str, Any] | None:
        if not delta.logprobs:
            return None
        tokenizer = self._service.tokenizer
        return {
            "tokens": [tokenizer.name(token) for token in delta.tokens],
            "token_logprobs": [_finite(each.chosen) for each in delta.logprobs],
            "top_logprobs": [
                _by_name(tokenizer, (*each.top, (token, each.chosen)))
                for token, each in zip(delta.tokens, delta.logprobs, strict=True)
            ],
            "text_offset": list(delta.offsets),
        }


class ChatShape(AnswerShape):
    prefix, whole_name, chunk_name = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._begun: set[int] = set()

    def _whole_choice(self, number: int, delta: Output) -> dict[str, Any]:
        message = {"role": "assistant", "content": delta.text, "refusal": None}
        return self._choice(number, delta, {"message": message}, self._logprobs(delta))

    def _chunk_choice(self, number: int, delta: Output) -> dict[str, Any]:
        """The first chunk of each answer has the role."""
        content: dict[str, Any] = {"content": delta.text} if delta.text else {}
        if number not in self._begun:
            self._begun.add(number)
            content = {"role": "assistant", "content": delta.text}
        return self._choice(number, delta, {"delta": content}, self._logprobs(delta))

    def _logprobs(self, delta: Output) -> dict[str, Any] | None:
        tokenizer = self._service.tokenizer
        entries = [
            {
                **_entry(tokenizer, token, each.chosen),
                "top_logprobs": [_entry(tokenizer, other, value) for other, value in each.top],
            }
            for token, each in zip(delta.tokens, delta.logprobs, strict=bool(delta.logprobs))
        ]
        return {"content": entries, "refusal": None} if entries else None


def _entry(tokenizer: Tokenizer, token: int, value: float) -> dict[str, Any]:
    return {"token": tokenizer.name(token), "logprob": _finite(value), "bytes": list(tokenizer.raw(token))}


def _by_name(tokenizer: Tokenizer, top: Sequence[tuple[int, float]]) -> dict[str, float]:
    """Tokens by their names, the likeliest first and the sampled one last; the first of one name counts."""
    found: dict[str, float] = {}
    for token, value in top:
        found.setdefault(tokenizer.name(token), _finite(value))
    return found


def _joined(deltas: Sequence[Output]) -> Output:
    return Output(
        tuple(token for each in deltas for token in each.tokens),
        "".join(each.text for each in deltas),
        tuple(logprobs for each in deltas for logprobs in each.logprobs),
        deltas[-1].finish if deltas else None,
        offsets=tuple(offset for each in deltas for offset in each.offsets),
    )


def _finite(value: float) -> float:
    return value if math.isfinite(value) else _LEAST_LOGPROB
