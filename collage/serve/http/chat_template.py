"""The chat template in a model's folder: how messages become a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from collage.core.library_text import library_text
from collage.errors import CollageError, InputError
from collage.serve.tokenizer import EXTRA, read_json


class ChatTemplate:
    """A template in Jinja, which runs in a sandbox, with the special tokens of the tokenizer."""

    def __init__(self, source: str, tokens: dict[str, str]) -> None:
        """Parse the template. Raises CollageError when it is none, or the library is missing."""
        try:
            from jinja2 import TemplateError
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError as error:
            raise CollageError(f"a chat template needs the library jinja2: {EXTRA}.") from error
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _refuse
        self._tokens = tokens
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise CollageError(f"cannot read the chat template: {library_text(error)}.") from error

    def prompt(self, messages: Sequence[dict[str, str]]) -> str:
        """The prompt that asks for the next message. Raises InputError when the template refuses the messages."""
        try:
            return str(
                self._template.render(messages=list(messages), add_generation_prompt=True, **self._tokens)
            )
        except Exception as error:  # a template is a program of others
            raise InputError(f"the chat template refuses these messages: {library_text(error)}.") from error


def _refuse(message: Any) -> NoReturn:
    raise ValueError(str(message))


def open_chat_template(folder: Path) -> ChatTemplate | None:
    """The template in ``chat_template.jinja`` or ``tokenizer_config.json``, None where neither has one."""
    config = read_json(folder / "tokenizer_config.json")
    file = folder / "chat_template.jinja"
    source = file.read_text() if file.exists() else config.get("chat_template")
    if isinstance(source, list):  # several with names, of which one is for chats
        named = {each.get("name"): each.get("template") for each in source if isinstance(each, dict)}
        source = named.get("default")
    if not isinstance(source, str):
        return None
    tokens = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            tokens[name] = text
    return ChatTemplate(source, tokens)
