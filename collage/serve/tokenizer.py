"""Texts to token ids and back, by the tokenizers library where the model's folder has a tokenizer."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from collage.core.library_text import library_text
from collage.core.typed import shown
from collage.errors import CollageError, InputError, UsageError

EXTRA = "pip install 'collage-compiler[serve]'"
_FILE = "tokenizer.json"
BROKEN = "\N{REPLACEMENT CHARACTER}"

_BYTE = re.compile("<0x([0-9A-F]{2})>")
"""How vocabularies of SentencePiece's kind name a byte."""
_PRINTED = (*range(33, 127), *range(161, 173), *range(174, 256))
_ALPHABET = {
    **{chr(byte): byte for byte in _PRINTED},
    **{chr(256 + i): byte for i, byte in enumerate(each for each in range(256) if each not in _PRINTED)},
}
"""The characters that stand for bytes in vocabularies of GPT-2's kind: their own ones, as far as these are printed."""


class Tokenizer(Protocol):
    """What turns texts into tokens of a model, and tokens into texts."""

    end_tokens: tuple[int, ...]

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The tokens of a text, with those that the model wants around it if ``special``. Raises InputError."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens. A character that they have only a part of is U+FFFD."""
        ...

    def has_text(self, token: int) -> bool:
        """Whether ``decode`` takes the token into account. Special tokens, and ids that there are not, have no text."""
        ...

    def name(self, token: int) -> str:
        """The text of one token behind others, also that of a special one."""
        ...

    def raw(self, token: int) -> bytes:
        """The bytes of one token behind others, which may end within a character."""
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
        return "".join(f"{each} " for each in tokens)

    def has_text(self, token: int) -> bool:
        return True

    def name(self, token: int) -> str:
        return f"{token} "

    def raw(self, token: int) -> bytes:
        return self.name(token).encode()


class FileTokenizer:
    def __init__(self, file: Path, end_tokens: tuple[int, ...] = ()) -> None:
        """Read the file. Raises CollageError when it cannot be used or the library is missing."""
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
        added = self._library.get_added_tokens_decoder()
        self._special = frozenset(token for token, each in added.items() if each.special)
        # Alone a token may have another text: decoders leave out the blank before the first one.
        try:
            self._before = self.encode("a", special=False)
        except InputError as error:
            raise CollageError(f"cannot use {file} with the text 'a': {error}") from error
        self._text_before = self._text(self._before)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The tokens of a text. Raises InputError for one that the vocabulary cannot spell.

        Other threads run meanwhile, as they do in the library's functions for batches only.
        """
        try:
            return list(self._library.encode_batch_fast([text], add_special_tokens=special)[0].ids)
        except Exception as error:  # the library raises Exception itself
            raise InputError(f"the tokenizer has no tokens for this text: {library_text(error)}.") from error

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._library.decode(list(tokens), skip_special_tokens=True))

    def has_text(self, token: int) -> bool:
        return token not in self._special and self._library.id_to_token(token) is not None

    def name(self, token: int) -> str:
        text = self._behind(token)
        # Part of a character has no text of its own, and all such parts would have the same name.
        return self._piece(token) if BROKEN in text else text

    def raw(self, token: int) -> bytes:
        text = self._behind(token)
        return _piece_bytes(self._piece(token)) if BROKEN in text else text.encode()

    def _piece(self, token: int) -> str:
        return str(self._library.id_to_token(token) or "")

    def _behind(self, token: int) -> str:
        text = self._text([*self._before, token])
        return text[len(self._text_before) :] if text.startswith(self._text_before) else self._text([token])

    def _text(self, tokens: Sequence[int]) -> str:
        return str(self._library.decode(list(tokens), skip_special_tokens=False))

    def token(self, name: str) -> int | None:
        found = self._library.token_to_id(name)
        return None if found is None else int(found)


def _piece_bytes(piece: str) -> bytes:
    """The bytes of a token that is a part of a character, by its name in the vocabulary."""
    if byte := _BYTE.fullmatch(piece):
        return bytes([int(byte[1], 16)])
    return bytes(_ALPHABET[each] for each in piece) if set(piece) <= set(_ALPHABET) else piece.encode()


def refuse_without_tokenizer(folder: Path) -> None:
    """Raise UsageError for a folder that is named for its tokenizer and has none."""
    if not (folder / _FILE).exists():
        raise UsageError(
            f"{folder} has no {_FILE}. Give its folder with --tokenizer, or leave --tokenizer out to use the file "
            "beside the model."
        )


def open_tokenizer(folder: Path) -> DecimalTokenizer | FileTokenizer:
    """The tokenizer in a model's folder, or the decimal one. End tokens come from the files beside it."""
    file = folder / _FILE
    if not file.exists():
        return DecimalTokenizer(_end_tokens(folder, None))
    tokenizer = FileTokenizer(file)
    tokenizer.end_tokens = _end_tokens(folder, tokenizer)
    return tokenizer


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file, empty when there is no such file. Raises CollageError for anything else."""
    try:
        found = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CollageError(f"cannot read {file}: {error}.") from error
    if not isinstance(found, dict):
        raise CollageError(f"{file} holds no JSON object.")
    return found


def end_tokens_in(folder: Path) -> tuple[int, ...]:
    """The tokens that end an answer, by ``generation_config.json`` or ``config.json``. Raises CollageError."""
    for name in ("generation_config.json", "config.json"):
        found = read_json(folder / name).get("eos_token_id")
        ids = found if isinstance(found, list) else [found]
        if found is None:
            continue
        if not all(isinstance(each, int) for each in ids):
            raise CollageError(f"{folder / name} says that eos_token_id is {shown(found)}: correct that, or remove it.")
        return tuple(ids)
    return ()


def _end_tokens(folder: Path, tokenizer: FileTokenizer | None) -> tuple[int, ...]:
    if known := end_tokens_in(folder):
        return known
    named = read_json(folder / "tokenizer_config.json").get("eos_token")
    if isinstance(named, dict):
        named = named.get("content")
    end = tokenizer.token(named) if tokenizer is not None and isinstance(named, str) else None
    return () if end is None else (end,)
