"""What the handlers of requests share: the engine, the tokenizer, the limits, and jobs made of them."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace

from collage.errors import InputError, UsageError
from collage.serve.http.bodies import ApiError, CommonBody, Message, bad_request, ended, unavailable
from collage.serve.http.chat_template import ChatTemplate
from collage.serve.http.link import DownError, Link
from collage.serve.http.messages import ModelReady
from collage.serve.http.metrics import Metrics
from collage.serve.request import Event, Finish, RefusedError, Request, answers_to, check_request
from collage.serve.sampling import Sampling
from collage.serve.text import Answer, Output
from collage.serve.tokenizer import Tokenizer

_LONG_TEXT = 4096
"""Longer texts are encoded in a thread, so that other requests go on meanwhile."""
_LONG_CHAT = 64
"""Chats of more messages become a prompt in a thread."""
_MOST_CHARACTERS = 128
"""The most characters of a text for each token of a prompt: as many as the longest tokens of common vocabularies have,
which are runs of blanks; the usual ones have four. It is found out without encoding the text, which takes seconds for
megabytes. A tokenizer that leaves out most of a text could take a longer one, and does not get it."""
_TOO_LONG = "context_length_exceeded"


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

    @property
    def up(self) -> bool:
        """Whether the engine takes requests."""
        return self.link.up

    def drain(self) -> None:
        """Take no more requests."""
        self.draining = True

    def cut_off(self) -> None:
        """Tell all open requests that there will be no answer."""
        self.link.fail_all(Finish.CANCELLED, "the server is shutting down.")

    def check_model(self, name: str) -> None:
        """Raise ApiError unless this is the model that is served."""
        if name != self.name:
            message = f"the model {name!r} does not exist; this server has {self.name!r}."
            raise ApiError(404, message, "model_not_found", "model")

    @property
    def max_length(self) -> int:
        return self._sizes.most_tokens

    @property
    def _sizes(self) -> ModelReady:
        if self.link.sizes is None:
            raise unavailable("the model is being loaded.")
        return self.link.sizes

    async def chat_prompt(self, messages: Sequence[Message]) -> str:
        """The text that asks for the next message. Raises ApiError if there is no template, or it refuses."""
        if self.template is None:
            raise bad_request("this model has no chat template; use /v1/completions.", code="no_chat_template")
        given = [each.for_template() for each in messages]
        try:
            if len(given) < _LONG_CHAT:
                return self.template.prompt(given)
            return await asyncio.to_thread(self.template.prompt, given)
        except InputError as error:
            raise bad_request(str(error), "messages") from error

    async def job(
        self,
        body: CommonBody,
        given: Sequence[str | tuple[int, ...]],
        max_tokens: int | None,
        logprobs: int | None,
        *,
        special: bool = True,
    ) -> HttpJob:
        """The requests of a body: ``n`` for each prompt. Raises ApiError when one can never be served.

        Prompts are texts or tokens; texts get the tokens that the model wants around them if ``special``.
        """
        if self.draining:
            raise unavailable("the server is shutting down.")
        self._check_number(body, len(given))
        prompts = await self._encoded(body, given, special)
        try:
            sampling = body.sampling(logprobs)
            found = [self._requests(body, each, sampling, max_tokens) for each in prompts]
        except UsageError as error:
            raise body.explained(error) from error
        return HttpJob(self, [each for requests in found for each in requests])

    def _requests(
        self, body: CommonBody, prompt: tuple[int, ...], sampling: Sampling, max_tokens: int | None
    ) -> list[Request]:
        """The requests for the answers to one prompt, of which the first one is the others' leader."""
        sizes = self._sizes
        room = max(sizes.most_tokens - len(prompt), 1)
        default = room if body.default_tokens is None else min(body.default_tokens, room)
        sampling = replace(sampling, max_tokens=default if max_tokens is None else max_tokens)
        first = Request(
            self.link.new_id(),
            prompt,
            sampling,
            priority=body.priority or 0,
            timeout_s=body.checked_timeout_s,
            cache_salt=body.checked_salt,
        )
        try:
            check_request(first, sizes)
        except InputError as error:
            if len(prompt) + sampling.max_tokens > sizes.most_tokens:
                raise bad_request(str(error), body.prompt_field, _TOO_LONG) from error
            raise
        return answers_to(first, body.answers, self.link.new_id)

    def _check_number(self, body: CommonBody, prompts: int) -> None:
        """Raise ApiError if these are more answers than the engine takes at a time."""
        answers, most = body.answers, self._sizes.most_open
        if prompts * answers > most:
            raise bad_request(
                f"{prompts} prompts with n = {answers} are {prompts * answers} answers; this server takes {most} at "
                "a time.",
                body.prompt_field if prompts > most or answers == 1 else "n",
            )

    async def _encoded(
        self, body: CommonBody, given: Sequence[str | tuple[int, ...]], special: bool
    ) -> list[tuple[int, ...]]:
        """The tokens of prompts. Raises ApiError if one is none for this model, or far too long for it."""
        for each in given:
            text = isinstance(each, str)
            most = self.max_length * (_MOST_CHARACTERS if text else 1)
            if len(each) > most:
                raise bad_request(
                    f"the prompt has {len(each)} {'characters' if text else 'tokens'}, of {most} at most: this server "
                    f"takes {self.max_length} tokens with the answer.",
                    body.prompt_field,
                    _TOO_LONG,
                )

        def encode() -> list[tuple[int, ...]]:
            return [
                tuple(self.tokenizer.encode(each, special=special)) if isinstance(each, str) else each for each in given
            ]

        texts = [each for each in given if isinstance(each, str)]
        try:
            if len(texts) > 1 or any(len(each) >= _LONG_TEXT for each in texts):
                return await asyncio.to_thread(encode)
            return encode()
        except InputError as error:
            raise bad_request(str(error), body.prompt_field) from error


class HttpJob:
    def __init__(self, service: Service, requests: Sequence[Request]) -> None:
        self._service = service
        self._requests = list(requests)
        self.id = uuid.uuid4().hex
        self.created = int(time.time())
        self.answers = [
            Answer(service.tokenizer, each.sampling, len(each.prompt), each.prompt) for each in self._requests
        ]

    async def deltas(self) -> AsyncGenerator[tuple[int, Output], None]:
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
            link.cancel(
                [each.id for each, answer in zip(self._requests, self.answers, strict=True) if answer.finish is None]
            )

    def usage(self) -> dict[str, object]:
        """The tokens used, as OpenAI counts them: a prompt once, however many answers it has."""
        firsts = [
            answer for request, answer in zip(self._requests, self.answers, strict=True) if request.leader is None
        ]
        prompt = sum(each.prompt_tokens for each in firsts)
        completion = sum(each.completion_tokens for each in self.answers)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(each.cached_tokens for each in firsts)},
        }
