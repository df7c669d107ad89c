"""Texts to token ids and back, by the tokenizers library where the model's folder has a tokenizer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from collage.core.library_text import library_text
from collage.errors import CollageError, InputError

EXTRA = "pip install 'collage[serve]'"


class Tokenizer(Protocol):
    """What turns texts into tokens of a model, and tokens into texts."""

    end_tokens: tuple[int, ...]

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The tokens of a text, with those that the model wants around it if ``special``. Raises InputError."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens. A character that they have only a part of is U+FFFD."""
        ...

    def name(self, token: int) -> str:
        """The text of one token alone, also that of a special one."""
        ...


class DecimalTokenizer:
    """The tokenizer of a model without one: a text is the tokens' ids in decimal, each with a blank behind it."""

    def __init__(self, end_tokens: tuple[int, ...] = ()) -> None:
        self.end_tokens = end_tokens

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The ids in the text. Raises InputError when something else is in it."""
        words = text.split()
        if not all(each.isascii() and each.isdigit() and len(each) < 12 for each in words):
            raise InputError("this model has no tokenizer; give the prompt as token ids.")
        return [int(each) for each in words]

    def decode(self, tokens: Sequence[int]) -> str:
        """The ids, each with a blank behind it."""
        return "".join(f"{each} " for each in tokens)

    def name(self, token: int) -> str:
        """The id and a blank."""
        return f"{token} "


class FileTokenizer:
    """The tokenizer of a file ``tokenizer.json``."""

    def __init__(self, file: Path, end_tokens: tuple[int, ...] = ()) -> None:
        """Read the file. Raises CollageError when it cannot be read or the library is missing."""
        try:
            from tokenizers import Tokenizer as Library
        except ImportError as error:
            raise CollageError(f"{file} needs the library tokenizers: {EXTRA}.") from error
        try:
            self._library = Library.from_file(str(file))
        except Exception as error:  # the library raises Exception itself
            raise CollageError(f"cannot read the tokenizer {file}: {library_text(error)}.") from error
        self._library.no_truncation()
        self._library.no_padding()
        self.end_tokens = end_tokens
        self.vocabulary = int(self._library.get_vocab_size())

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The tokens of a text. Other threads run meanwhile, as they do in the library's functions for batches only."""
        return list(self._library.encode_batch_fast([text], add_special_tokens=special)[0].ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without special ones."""
        return str(self._library.decode(list(tokens), skip_special_tokens=True))

    def name(self, token: int) -> str:
        """The text of one token, which for a special one is its name."""
        text = str(self._library.decode([token], skip_special_tokens=False))
        # Part of a character has no text of its own, and all such parts would have the same name.
        return str(self._library.id_to_token(token) or text) if "\N{REPLACEMENT CHARACTER}" in text else text

    def token(self, name: str) -> int | None:
        """The id of a token by its name, None if there is none."""
        found = self._library.token_to_id(name)
        return None if found is None else int(found)


def open_tokenizer(folder: Path) -> DecimalTokenizer | FileTokenizer:
    """The tokenizer in a model's folder, or the decimal one. End tokens come from the files beside it."""
    file = folder / "tokenizer.json"
    if not file.exists():
        return DecimalTokenizer(_end_tokens(folder, None))
    tokenizer = FileTokenizer(file)
    tokenizer.end_tokens = _end_tokens(folder, tokenizer)
    return tokenizer


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file, empty when there is no such file. Raises CollageError for anything else."""
    try:
        found = json.loads(file.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CollageError(f"cannot read {file}: {error}.") from error
    if not isinstance(found, dict):
        raise CollageError(f"{file} holds no JSON object.")
    return found


def _end_tokens(folder: Path, tokenizer: FileTokenizer | None) -> tuple[int, ...]:
    for name in ("generation_config.json", "config.json"):
        found = read_json(folder / name).get("eos_token_id")
        ids = found if isinstance(found, list) else [found]
        if found is not None and all(isinstance(each, int) for each in ids):
            return tuple(ids)
    named = read_json(folder / "tokenizer_config.json").get("eos_token")
    if isinstance(named, dict):
        named = named.get("content")
    end = tokenizer.token(named) if tokenizer is not None and isinstance(named, str) else None
    return () if end is None else (end,)
