"""The bodies of requests as values, and errors in OpenAI's form. Unknown fields and wrong types are refused."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast

from collage.errors import UsageError
from collage.serve.request import Finish
from collage.serve.sampling import Sampling

_TYPES = {400: "invalid_request_error", 404: "not_found_error", 408: "timeout_error", 429: "rate_limit_error"}


@dataclass
class ApiError(Exception):
    """An answer other than 200. ``param`` is the field of the request that is wrong."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    retry_after_s: int | None = None

    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        return {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, code, param)


def unavailable(message: str, retry_after_s: int = 1) -> ApiError:
    return ApiError(503, message, "unavailable", None, retry_after_s)


def ended(finish: Finish, message: str) -> ApiError | None:
    if finish is Finish.EXPIRED:
        return ApiError(408, "the answer was not complete within timeout_s.", "timeout")
    if finish is Finish.FAILED:
        return ApiError(500, message, "engine_error")
    if finish is Finish.CANCELLED:
        return unavailable(message or "the server is shutting down.")
    return None


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
    """Whether two values are equal in JSON: true is not 1."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


Body = TypeVar("Body", bound="CommonBody")
Item = TypeVar("Item")

_MAX_N = 128
_MAX_SALT = 256

_WANTED = {
    "bool_type": "true or false",
    "dataclass_type": "an object",
    "dict_type": "an object",
    "float_type": "a number",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "string_type": "a text",
    "tuple_type": "a list",
}
"""What a value must be, by the type of pydantic's error."""
_CHOICES = {
    "prompt": "a text, texts, token ids, or lists of token ids",
    "stop": "a text or a list of texts",
    "content": "a text or a list of text parts",
}
"""What the fields of several types must be."""


class _FailFast:
    """Ends the check of a sequence at its first wrong element: an error for each of millions would take seconds.

    It is pydantic's mark of the same name, for a module that is imported without that library, too.
    """

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        return {**handler(source), "fail_fast": True}


Several = Annotated[tuple[Item, ...], _FailFast()]


class BodyObject:
    """An object in a body. Of the fields that it does not declare, those in ``neutral`` may be there, too."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "allow"}

    neutral: ClassVar[Neutral] = {}


@dataclass(frozen=True)
class StreamOptions(BodyObject):
    neutral = STREAM_OPTIONS

    include_usage: bool | None = None


@dataclass(frozen=True, kw_only=True)
class CommonBody(BodyObject):
    """The fields that both kinds of requests have; those in the last group are ours.

    ``prompt_field`` is where the prompt is, and ``default_tokens`` the most tokens of an answer where the request does
    not say it, None for as many as there is room for.
    """

    prompt_field: ClassVar[str]
    default_tokens: ClassVar[int | None]

    model: str
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | Several[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, Any] | None = None
    seed: int | None = None

    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: Several[int] | None = None
    ignore_eos: bool | None = None
    priority: int | None = None
    timeout_s: float | None = None
    cache_salt: str | None = None

    @property
    def renamed(self) -> Mapping[str, str]:
        """The fields of the request that have other names in ``Sampling``, by these."""
        return {}

    def explained(self, error: UsageError) -> ApiError:
        """The error for a value that is out of range, with the first field that the message names."""
        message = re.sub(r"\w+", lambda word: self.renamed.get(word[0], word[0]), str(error))
        places = {**{each.name: each.name for each in fields(self)}, "prompt": self.prompt_field}
        named = (places[word] for word in re.findall(r"\w+", message) if word in places)
        return bad_request(message, next(named, None))

    @property
    def answers(self) -> int:
        n = 1 if self.n is None else self.n
        if not 1 <= n <= _MAX_N:
            raise bad_request(f"n is {n}; it must be from 1 to {_MAX_N}.", "n")
        return n

    @property
    def wants_usage(self) -> bool:
        if self.stream_options is None:
            return False
        if not self.stream:
            raise bad_request("stream_options is for streams; set stream, too.", "stream_options")
        return bool(self.stream_options.include_usage)

    @property
    def checked_timeout_s(self) -> float | None:
        found = self.timeout_s
        if found is not None and not (math.isfinite(found) and found > 0):
            raise bad_request("timeout_s must be a number of seconds above 0.", "timeout_s")
        return found

    @property
    def checked_salt(self) -> str:
        """The salt of the cache; the engine has a copy of it for each answer."""
        found = self.cache_salt or ""
        if len(found) > _MAX_SALT:
            raise bad_request(f"cache_salt has more than {_MAX_SALT} characters.", "cache_salt")
        return found

    def sampling(self, logprobs: int | None) -> Sampling:
        """The parameters of the request but for ``max_tokens``. Raises UsageError when one is out of range."""
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop or ()
        min_tokens = _given(self.min_tokens, 0)
        return Sampling(
            max_tokens=max(1, min_tokens),  # until it is known what there is room for
            min_tokens=min_tokens,
            temperature=_given(self.temperature, 1.0),
            top_k=0 if self.top_k == -1 else _given(self.top_k, 0),  # other servers write "all" as -1
            top_p=_given(self.top_p, 1.0),
            min_p=_given(self.min_p, 0.0),
            repetition_penalty=_given(self.repetition_penalty, 1.0),
            seed=self.seed,
            presence_penalty=_given(self.presence_penalty, 0.0),
            frequency_penalty=_given(self.frequency_penalty, 0.0),
            logit_bias=tuple(pair for each in (self.logit_bias or {}).items() if (pair := _bias(*each))[1]),
            logprobs=logprobs,
            stop=stop,
            stop_token_ids=self.stop_token_ids or (),
            ignore_eos=bool(self.ignore_eos),
        )


@dataclass(frozen=True, kw_only=True)
class CompletionBody(CommonBody):
    neutral = COMPLETION
    prompt_field = "prompt"
    default_tokens = 16  # as in OpenAI's API

    prompt: str | Several[int] | Several[str] | Several[Several[int]]
    max_tokens: int | None = None
    logprobs: int | None = None

    @property
    def prompts(self) -> tuple[str | tuple[int, ...], ...]:
        prompt = self.prompt
        if isinstance(prompt, str):
            return (prompt,)
        if not prompt or isinstance(prompt[0], int):
            return (prompt,)  # type: ignore[return-value]
        return prompt


@dataclass(frozen=True)
class TextPart(BodyObject):
    type: Literal["text"]
    text: str


@dataclass(frozen=True, kw_only=True)
class Message(BodyObject):
    neutral = MESSAGE

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Several[TextPart]
    name: str | None = None

    def for_template(self) -> dict[str, str]:
        """The message as chat templates take it. Its parts are lines, as vLLM has them."""
        content = self.content
        text = content if isinstance(content, str) else "\n".join(each.text for each in content)
        return {"role": self.role, "content": text, **({} if self.name is None else {"name": self.name})}


@dataclass(frozen=True, kw_only=True)
class ChatBody(CommonBody):
    neutral = CHAT
    prompt_field = "messages"
    default_tokens = None

    messages: Several[Message]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    @property
    def renamed(self) -> Mapping[str, str]:
        """The names of the number of log probabilities, and of the most tokens if it is given by the newer one."""
        found = {"logprobs": "top_logprobs"}
        if self.max_completion_tokens is not None:
            found["max_tokens"] = "max_completion_tokens"
        return found

    @property
    def given_messages(self) -> tuple[Message, ...]:
        if not self.messages:
            raise bad_request("messages is empty; give at least one message.", "messages")
        return self.messages

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def most_logprobs(self) -> int | None:
        """How many of the likeliest tokens are reported, None for no log probabilities."""
        if not self.logprobs:
            if self.top_logprobs:
                raise bad_request("top_logprobs needs logprobs to be true.", "top_logprobs")
            return None
        return self.top_logprobs or 0


@cache
def _adapter(kind: Hashable) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def parse(kind: type[Body], data: bytes) -> Body:
    """Read a body. Raises ApiError, which names the field that is wrong."""
    from pydantic import ValidationError

    try:
        found: Body = _adapter(cast(Hashable, kind)).validate_json(data, strict=True)
    except ValidationError as error:
        raise _explained(error.errors(include_url=False, include_input=False)) from error
    _check(found)
    return found


def _check(part: BodyObject, place: str = "") -> None:
    """Raise ApiError for fields of an object, or of one in it, that are neither declared nor neutral.

    The object itself is asked for nothing: a client may call a field as it likes, also like a method.
    """
    kind: Any = type(part)
    known = _names(kind)
    for name, value in vars(part).items():
        path = f"{place}.{name}" if place else name
        if name not in known:
            check_neutral(path, name, value, kind.neutral, known)
        elif isinstance(value, BodyObject):
            _check(value, path)
        elif isinstance(value, tuple) and value and isinstance(value[0], BodyObject):
            for number, each in enumerate(value):
                _check(each, f"{path}.{number}")


@cache
def _names(kind: Any) -> frozenset[str]:
    return frozenset(each.name for each in fields(kind))


def _explained(errors: Sequence[Any]) -> ApiError:
    """The error for the first field that is wrong: of the errors for its several types, the one that goes deepest."""
    field = errors[0]["loc"][:1]
    found = max((each for each in errors if each["loc"][:1] == field), key=lambda each: len(each["loc"]))
    kind, place = found["type"], [str(each) for each in found["loc"]]
    if not place:
        reason = f": {found['ctx']['error']}" if kind == "json_invalid" else ""
        return bad_request(f"the body is no JSON object{reason}.")
    # If a field may have several types, the name of one follows the field's.
    names = [each for each in place if (each.isidentifier() and each != "str") or each.isdigit()]
    if names[0] == "prompt":
        names = names[:1]
    path, wanted = ".".join(names), _WANTED.get(kind)
    if kind == "missing":
        return bad_request(f"{path} is missing.", names[0])
    if kind == "literal_error":
        if names[-1] == "type":
            part = path.removesuffix(".type")
            return bad_request(f"{part} is no text: this model takes text parts only.", names[0])
        wanted = found["ctx"]["expected"]
    if place[-1] != names[-1]:
        wanted = _CHOICES[names[-1]]
    return bad_request(f"{path} must be {wanted}." if wanted else f"{path}: {found['msg']}.", names[0])


def _bias(name: str, value: object) -> tuple[int, float]:
    """A pair of ``logit_bias``; not by pydantic, which has an error for each value that is wrong."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (number and name.isascii() and name.isdigit() and len(name) < 12):
        raise bad_request("logit_bias maps token ids to numbers.", "logit_bias")
    return int(name), cast(float, value)


Number = TypeVar("Number", int, float)


def _given(value: Number | None, otherwise: Number) -> Number:
    return otherwise if value is None else value
