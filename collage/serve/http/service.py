"""What the handlers of requests share: the engine, the tokenizer, the limits, and jobs made of them."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace

from collage.errors import InputError, UsageError
from collage.serve.admission import check_request
from collage.serve.answer import Answer, Delta
from collage.serve.http.bodies import CommonBody, seconds
from collage.serve.http.chat_template import ChatTemplate
from collage.serve.http.errors import ApiError, bad_request, ended, unavailable
from collage.serve.http.link import DownError, Link
from collage.serve.http.metrics import Metrics
from collage.serve.request import Event, RefusedError, Request
from collage.serve.tokenizer import Tokenizer

_LONG_TEXT = 4096
"""Longer texts are encoded in a thread, so that other requests go on meanwhile."""


@dataclass
class Service:
    """The server's state. ``draining`` says that it takes no more requests."""

    name: str
    tokenizer: Tokenizer
    template: ChatTemplate | None
    link: Link
    metrics: Metrics
    draining: bool = False
    started: int = field(default_factory=lambda: int(time.time()))

    def check_model(self, name: str) -> None:
        """Raise ApiError unless this is the model that is served."""
        if name != self.name:
            message = f"the model {name!r} does not exist; this server has {self.name!r}."
            raise ApiError(404, message, "model_not_found", "model")

    @property
    def max_length(self) -> int:
        """The most tokens of a prompt and its answer together."""
        if self.link.sizes is None:
            raise unavailable("the model is being loaded.")
        return self.link.sizes.max_length

    async def encode(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        """The tokens of a text. Raises ApiError when it is none for this model."""
        try:
            if len(text) < _LONG_TEXT:
                return tuple(self.tokenizer.encode(text, special=special))
            return tuple(await asyncio.to_thread(self.tokenizer.encode, text, special=special))
        except InputError as error:
            raise bad_request(str(error), "prompt") from error

    def job(
        self,
        body: CommonBody,
        prompts: Sequence[tuple[int, ...]],
        max_tokens: int | None,
        logprobs: int | None,
    ) -> Job:
        """The requests of a body: ``n`` for each prompt. Raises ApiError when one can never be served."""
        requests: list[Request] = []
        answers = body.answers
        sizes = self.link.sizes
        if sizes is None or self.draining:
            raise unavailable(
                "the server is shutting down." if self.draining else "the model is being loaded."
            )
        if len(prompts) * answers > sizes.most_open:
            raise bad_request(
                f"{len(prompts)} prompts with n = {answers} are {len(prompts) * answers} answers; this server takes "
                f"{sizes.most_open} at a time.",
                "n",
            )
        for prompt in prompts:
            most = max(self.max_length - len(prompt), 1) if max_tokens is None else max_tokens
            try:
                sampling = body.sampling(most, logprobs)
                first = Request(
                    self.link.new_id(),
                    prompt,
                    sampling,
                    priority=body.priority or 0,
                    timeout_s=seconds(body.timeout_s),
                    cache_salt=body.cache_salt or "",
                )
                check_request(first, sizes)
            except UsageError as error:
                too_long = len(prompt) + most > sizes.max_length
                raise bad_request(
                    str(error), None, "context_length_exceeded" if too_long else None
                ) from error
            requests.append(first)
            for i in range(1, answers):
                seed = None if sampling.seed is None else (sampling.seed + i) % 2**64
                requests.append(
                    replace(
                        first,
                        id=self.link.new_id(),
                        sampling=replace(sampling, seed=seed),
                        leader=first.id,
                    )
                )
        return Job(self, requests)


class Job:
    """The answers to one HTTP request, as they come."""

    def __init__(self, service: Service, requests: Sequence[Request]) -> None:
        self._service = service
        self._requests = list(requests)
        self.id = uuid.uuid4().hex
        self.created = int(time.time())
        self.answers = [Answer(service.tokenizer, each.sampling, len(each.prompt)) for each in self._requests]

    async def deltas(self) -> AsyncGenerator[tuple[int, Delta], None]:
        """Send the requests, and yield the number of an answer with what is new in it.

        Raises ApiError when they are refused or fail. Whatever ends this, the engine lets the rest go.
        """
        link = self._service.link
        sink: asyncio.Queue[Event] = asyncio.Queue()
        arrival_s = time.monotonic()
        try:
            link.submit(self._requests, sink)
        except RefusedError as error:
            after = link.retry_after_s()
            message = f"the server has as many requests as it may have; try again in {after} s."
            raise ApiError(429, message, "overloaded", None, after) from error
        except DownError as error:
            raise unavailable("the engine is being started; try again.") from error
        numbers = {each.id: i for i, each in enumerate(self._requests)}
        for id in numbers:
            self._service.metrics.arrived(id, arrival_s)
        left = len(numbers)
        try:
            while left:
                event = await sink.get()
                number = numbers[event.id]
                answer = self.answers[number]
                delta = answer.add(event)
                if delta is None:
                    continue
                if delta.finish is not None:
                    left -= 1
                    failure = ended(delta.finish, delta.error)
                    if failure is not None:
                        raise failure
                yield number, delta
        finally:
            for each, answer in zip(self._requests, self.answers, strict=True):
                if answer.finish is None:
                    link.cancel(each.id)

    def usage(self) -> dict[str, object]:
        """The tokens used, as OpenAI counts them: a prompt once, however many answers it has."""
        firsts = [
            answer
            for request, answer in zip(self._requests, self.answers, strict=True)
            if request.leader is None
        ]
        prompt = sum(each.prompt_tokens for each in firsts)
        completion = sum(each.completion_tokens for each in self.answers)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(each.cached_tokens for each in firsts)},
        }
