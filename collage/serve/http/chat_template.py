"""The chat template in a model's folder: how messages become a prompt, rendered as the library transformers does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from collage.core.library_text import library_text
from collage.errors import CollageError, InputError
from collage.serve.tokenizer import EXTRA, read_json

_TOKENS = tuple(f"{name}_token" for name in "bos eos unk sep pad cls mask".split())
_MORE_TOKENS = "additional_special_tokens"
_NAMED_TOKENS = "extra_special_tokens"


class ChatTemplate:
    """A template in Jinja, which runs in a sandbox, with the special tokens of the tokenizer."""

    def __init__(self, source: str, tokens: Mapping[str, str | list[str]]) -> None:
        """Parse the template. Raises CollageError when it is none, or the library is missing."""
        try:
            from jinja2 import TemplateError
        except ImportError as error:
            raise CollageError(f"a chat template needs the library jinja2: {EXTRA}.") from error
        self._tokens = tokens
        try:
            self._template = _environment().from_string(source)
        except TemplateError as error:
            raise CollageError(f"cannot read the chat template: {library_text(error)}.") from error

    def prompt(self, messages: Sequence[dict[str, str]]) -> str:
        """The prompt that asks for the next message. Raises InputError when the template refuses the messages."""
        asked = {"messages": list(messages), "tools": None, "documents": None, "add_generation_prompt": True}
        try:
            return str(self._template.render({**self._tokens, **asked}))
        except Exception as error:  # a template is a program of others
            raise InputError(f"the chat template refuses these messages: {library_text(error)}.") from error


def _environment() -> Any:
    """What templates may use, with the options, extensions, filters and functions that transformers gives them."""
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):  # type: ignore[misc]  # jinja2 has no types here
        """The block that marks what a model has said, for training. Its body is rendered as it is."""

        tags = frozenset({"generation"})

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    found = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    found.filters["tojson"] = _to_json
    found.globals.update(raise_exception=_refuse, strftime_now=_time_now)
    return found


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is; Jinja's own filter writes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _time_now(form: str) -> str:
    return datetime.now().strftime(form)


def _refuse(message: Any) -> NoReturn:
    raise ValueError(str(message))


def open_chat_template(folder: Path) -> ChatTemplate | None:
    """The template in ``chat_template.jinja`` or ``tokenizer_config.json``, None if neither has one.

    Special tokens are those of ``special_tokens_map.json`` and ``tokenizer_config.json``, where the latter counts.
    Raises CollageError for files that cannot be read.
    """
    config = read_json(folder / "tokenizer_config.json")
    file = folder / "chat_template.jinja"
    try:
        source = file.read_text("utf-8") if file.exists() else config.get("chat_template")
    except (OSError, ValueError) as error:
        raise CollageError(f"cannot read {file}: {error}.") from error
    if isinstance(source, list):  # several with names, of which one is for chats
        named = {each.get("name"): each.get("template") for each in source if isinstance(each, dict)}
        source = named.get("default")
    if not isinstance(source, str):
        return None
    return ChatTemplate(source, {**_tokens(read_json(folder / "special_tokens_map.json")), **_tokens(config)})


def _tokens(config: Mapping[str, Any]) -> dict[str, str | list[str]]:
    more = config.get(_NAMED_TOKENS)
    named = [
        *(more.items() if isinstance(more, dict) else ()),
        *((name, config.get(name)) for name in _TOKENS),
    ]
    found: dict[str, str | list[str]] = {name: text for name, each in named if (text := _text(each)) is not None}
    listed = config.get(_MORE_TOKENS)
    if isinstance(listed, list):
        found[_MORE_TOKENS] = [text for each in listed if (text := _text(each)) is not None]
    return found


def _text(token: Any) -> str | None:
    """A token is its text, or an object that has it."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
