"""The objects of OpenAI's API that answers are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

from collage.serve.http.service import HttpJob, Service
from collage.serve.request import Finish
from collage.serve.sampling import Logprobs
from collage.serve.text import Delta
from collage.serve.tokenizer import Tokenizer

_LEAST_LOGPROB = -9999.0
"""What OpenAI's API has for a probability of 0, as JSON has no infinity."""


class AnswerShape(Protocol):
    """How one of the two kinds of answers looks."""

    def whole(self, job: HttpJob, deltas: Sequence[Sequence[Delta]]) -> dict[str, Any]:
        """The answer as one object, from the deltas of each answer."""
        ...

    def chunk(self, job: HttpJob, number: int, delta: Delta) -> dict[str, Any]: ...

    def last(self, job: HttpJob) -> dict[str, Any]:
        """The object at the end of a stream, which has its usage."""
        ...


class CompletionShape:
    def __init__(self, service: Service) -> None:
        self._service = service

    def whole(self, job: HttpJob, deltas: Sequence[Sequence[Delta]]) -> dict[str, Any]:
        choices = [self._choice(number, _joined(each)) for number, each in enumerate(deltas)]
        return {**self._head(job), "choices": choices, "usage": job.usage()}

    def chunk(self, job: HttpJob, number: int, delta: Delta) -> dict[str, Any]:
        return {**self._head(job), "choices": [self._choice(number, delta)]}

    def last(self, job: HttpJob) -> dict[str, Any]:
        return {**self._head(job), "choices": [], "usage": job.usage()}

    def _head(self, job: HttpJob) -> dict[str, Any]:
        return {
            "id": f"cmpl-{job.id}",
            "object": "text_completion",
            "created": job.created,
            "model": self._service.name,
        }

    def _choice(self, number: int, delta: Delta) -> dict[str, Any]:
        return {
            "index": number,
            "text": delta.text,
            "logprobs": self._logprobs(delta),
            "finish_reason": _reason(delta.finish),
            "token_ids": list(delta.tokens),
        }

    def _logprobs(self, delta: Delta) -> dict[str, Any] | None:
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


class ChatShape:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._begun: set[int] = set()

    def whole(self, job: HttpJob, deltas: Sequence[Sequence[Delta]]) -> dict[str, Any]:
        choices = []
        for number, each in enumerate(deltas):
            delta = _joined(each)
            message = {"role": "assistant", "content": delta.text, "refusal": None}
            choices.append(self._choice(number, delta, {"message": message}))
        return {**self._head(job, "chat.completion"), "choices": choices, "usage": job.usage()}

    def chunk(self, job: HttpJob, number: int, delta: Delta) -> dict[str, Any]:
        """An object of a stream; the first one of each answer has the role."""
        content: dict[str, Any] = {"content": delta.text} if delta.text else {}
        if number not in self._begun:
            self._begun.add(number)
            content = {"role": "assistant", "content": delta.text}
        choice = self._choice(number, delta, {"delta": content})
        return {**self._head(job, "chat.completion.chunk"), "choices": [choice]}

    def last(self, job: HttpJob) -> dict[str, Any]:
        return {**self._head(job, "chat.completion.chunk"), "choices": [], "usage": job.usage()}

    def _head(self, job: HttpJob, kind: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{job.id}",
            "object": kind,
            "created": job.created,
            "model": self._service.name,
        }

    def _choice(self, number: int, delta: Delta, content: dict[str, Any]) -> dict[str, Any]:
        tokenizer = self._service.tokenizer
        entries = [
            {
                **_entry(tokenizer, token, each.chosen),
                "top_logprobs": [_entry(tokenizer, other, value) for other, value in each.top],
            }
            for token, each in zip(delta.tokens, delta.logprobs, strict=bool(delta.logprobs))
        ]
        return {
            "index": number,
            **content,
            "logprobs": {"content": entries, "refusal": None} if entries else None,
            "finish_reason": _reason(delta.finish),
            "token_ids": list(delta.tokens),
        }


def _entry(tokenizer: Tokenizer, token: int, value: float) -> dict[str, Any]:
    return {"token": tokenizer.name(token), "logprob": _finite(value), "bytes": list(tokenizer.raw(token))}


def _by_name(tokenizer: Tokenizer, top: Sequence[tuple[int, float]]) -> dict[str, float]:
    """Tokens by their names, the likeliest first and the sampled one last; the first of one name counts."""
    found: dict[str, float] = {}
    for token, value in top:
        found.setdefault(tokenizer.name(token), _finite(value))
    return found


def _joined(deltas: Sequence[Delta]) -> Delta:
    tokens: list[int] = []
    logprobs: list[Logprobs] = []
    offsets: list[int] = []
    for each in deltas:
        tokens += each.tokens
        logprobs += each.logprobs
        offsets += each.offsets
    text = "".join(each.text for each in deltas)
    finish = deltas[-1].finish if deltas else None
    return Delta(text, tuple(tokens), tuple(logprobs), finish, offsets=tuple(offsets))


def _reason(finish: Finish | None) -> str | None:
    return None if finish is None else finish.value


def _finite(value: float) -> float:
    return value if math.isfinite(value) else _LEAST_LOGPROB
