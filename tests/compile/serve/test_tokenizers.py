"""Answers, names and bytes with the kinds of tokenizers that models have: SentencePiece's as Llama's, and GPT-2's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.errors import CollageError, InputError
from collage.serve import Engine, Sampling
from collage.serve.http.objects import ChatShape, CompletionShape
from collage.serve.request import Event, Finish
from collage.serve.sampling import Logprobs
from collage.serve.text import Answer, Detokenizer
from collage.serve.tokenizer import FileTokenizer
from tests.compile.serve.test_text import ByteTokenizer
from tests.helpers.serve.served import ROOT
from tests.helpers.serve.simulation import NullRunner

pytest.importorskip("tokenizers", reason="tokenizers is missing: pip install 'collage-compiler[serve]'")
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

BEGIN, HELLO, END, WORLD, BLANK, ER = range(6)
PIECES = ["<s>", "▁Hello", "</s>", "▁world", "▁", "er", "<unk>", "a"]
FIRST_BYTE = len(PIECES)
YOU = [FIRST_BYTE + byte for byte in "你".encode()]


def opened(made: Tokenizer, folder: Path) -> FileTokenizer:
    made.save(str(folder / "tokenizer.json"))
    return FileTokenizer(folder / "tokenizer.json")


def llama(folder: Path, *, metaspace: bool = False) -> FileTokenizer:
    """A blank is a part of the token behind it, and is left out before the first one. Each byte has a token."""
    names = [*PIECES, *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {name: i for i, name in enumerate(names)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    as_llama = [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    made.decoder = decoders.Metaspace() if metaspace else decoders.Sequence(as_llama)
    made.add_special_tokens([AddedToken(name, special=True) for name in ("<s>", "</s>", "<unk>")])
    return opened(made, folder)


MERGED = [("Ġ", "ä"), ("Ġä", "½"), ("ï", "¿"), ("ï¿", "½")]


def gpt2(folder: Path) -> FileTokenizer:
    """A token is some bytes, which its name spells in another alphabet."""
    names = sorted(pre_tokenizers.ByteLevel.alphabet()) + ["".join(each) for each in MERGED]
    made = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=MERGED))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken("<|end|>", special=True)])
    return opened(made, folder)


@pytest.fixture(scope="module")
def of_llama(tmp_path_factory: pytest.TempPathFactory) -> FileTokenizer:
    return llama(tmp_path_factory.mktemp("llama"))


def text_of(tokenizer: FileTokenizer, prompt: list[int], answer: list[int]) -> str:
    detokenizer = Detokenizer(tokenizer, prompt)
    return "".join([detokenizer.add(each) for each in answer]) + detokenizer.flush()


@pytest.mark.parametrize("metaspace", [False, True])
def test_the_first_token_of_an_answer_keeps_its_blank(metaspace: bool, tmp_path: Path) -> None:
    tokenizer = llama(tmp_path, metaspace=metaspace)
    assert text_of(tokenizer, [BEGIN, HELLO], [WORLD, WORLD]) == " world world"
    assert text_of(tokenizer, [BEGIN, HELLO, *[END] * 20], [WORLD, *[END] * 20, WORLD]) == " world world"
    assert text_of(tokenizer, [BEGIN], [WORLD, WORLD]) == "world world"  # nothing is before it
    with Engine(NullRunner(), tokenizer=tokenizer) as engine:  # its model says Hello whatever it is asked
        assert engine.submit((BEGIN, HELLO), Sampling(max_tokens=2, temperature=0)).result().text == " Hello Hello"
        stopped = engine.submit((BEGIN, HELLO), Sampling(max_tokens=9, temperature=0, stop=(" Hello",))).result()
    assert (stopped.tokens, stopped.text, stopped.finish) == ((HELLO,), "", Finish.STOP)


UNITS = st.lists(st.sampled_from([[HELLO], [WORLD], [BLANK], [ER], [END], YOU]), max_size=12)


@settings(max_examples=200, deadline=None)
@given(UNITS, UNITS)
def test_an_answer_is_what_it_adds_to_the_text_of_all_tokens(
    of_llama: FileTokenizer, prompt: list[list[int]], answer: list[list[int]]
) -> None:
    before = [HELLO, *(token for each in prompt for token in each)]
    behind = [token for each in answer for token in each]
    whole = of_llama.decode([*before, *behind])
    assert of_llama.decode(before) + text_of(of_llama, before, behind) == whole


@pytest.mark.parametrize("make", [llama, gpt2])
def test_an_answer_completes_the_character_that_the_prompt_ends_in(
    make: Callable[[Path], FileTokenizer], tmp_path: Path
) -> None:
    tokenizer = make(tmp_path)
    tokens = tokenizer.encode("aa你", special=False)
    assert text_of(tokenizer, tokens[:-1], [tokens[-1], *tokens[-3:]]) == "你你"


def test_tokens_without_a_text_take_no_more_time_the_more_there_are(of_llama: FileTokenizer) -> None:
    class Counting:
        """A tokenizer that notes how many tokens it decodes at once."""

        def __init__(self, inner: object) -> None:
            self.inner = inner
            self.most = 0

        def __getattr__(self, name: str) -> object:
            return getattr(self.inner, name)

        def decode(self, tokens: list[int]) -> str:
            self.most = max(self.most, len(tokens))
            return self.inner.decode(tokens)

    for inner, silent in ((of_llama, END), (of_llama, 10**6), (ByteTokenizer(), 256)):
        tokenizer = Counting(inner)
        assert text_of(tokenizer, [HELLO, silent], [*[silent] * 200, ER]) == inner.decode([ER])
        assert tokenizer.most < 20


def test_names_and_bytes_of_tokens_behind_others(of_llama: FileTokenizer, tmp_path: Path) -> None:
    assert [of_llama.name(each) for each in (WORLD, BLANK, ER, END)] == [" world", " ", "er", "</s>"]
    assert [of_llama.raw(each) for each in (WORLD, BLANK, ER, END)] == [b" world", b" ", b"er", b"</s>"]
    assert [of_llama.name(each) for each in YOU] == ["<0xE4>", "<0xBD>", "<0xA0>"]
    assert b"".join(of_llama.raw(FIRST_BYTE + byte) for byte in range(256)) == bytes(range(256))
    assert (of_llama.name(10**6), of_llama.raw(10**6)) == ("", b"")
    bytewise = gpt2(tmp_path)
    ids = {bytewise.token(name): name for name in pre_tokenizers.ByteLevel.alphabet()}
    assert sorted(map(bytewise.raw, ids)) == [bytes([byte]) for byte in range(256)]
    assert bytewise.name(bytewise.token("Ġ")) == " "
    part, replacement = bytewise.token("Ġä½"), bytewise.token("ï¿½")
    assert (bytewise.name(part), bytewise.raw(part)) == ("Ġä½", b" \xe4\xbd")
    assert bytewise.raw(replacement) == "\N{REPLACEMENT CHARACTER}".encode()


def test_texts_that_the_vocabulary_cannot_spell_are_refused(tmp_path: Path) -> None:
    tokenizer = opened(Tokenizer(models.WordLevel({"a": 0})), tmp_path)
    assert tokenizer.encode("a") == [0]
    with pytest.raises(InputError, match="no tokens for this text"):
        tokenizer.encode("zzz")
    with pytest.raises(CollageError, match=r"tokenizer\.json with the text 'a'"):
        opened(Tokenizer(models.WordLevel({"b": 0})), tmp_path)


def test_files_beside_a_tokenizer_are_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"author": "你", "eos_token_id": 7}', "utf-8")
    code = (
        "from pathlib import Path; from collage.serve.tokenizer import open_tokenizer\n"
        f"print(open_tokenizer(Path({str(tmp_path)!r})).end_tokens)"
    )
    done = subprocess.run(
        [sys.executable, "-X", "utf8=0", "-c", code],
        env={**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.stdout == "(7,)\n", done.stderr


def test_log_probabilities_tell_where_tokens_are_and_their_bytes(of_llama: FileTokenizer) -> None:
    answer = Answer(of_llama, Sampling(max_tokens=9, logprobs=1), 2, (BEGIN, HELLO))
    tokens = [WORLD, *YOU, ER]
    events = [Event(0, each, Logprobs(-1.0, ((each, -1.0),))) for each in tokens]
    deltas = [delta for each in events if (delta := answer.add(each)) is not None]
    assert [each.text for each in deltas] == [" world", "你", "er"]
    service = SimpleNamespace(tokenizer=of_llama, name="m")
    job = SimpleNamespace(id="1", created=0, usage=dict)
    whole = CompletionShape(service).whole(job, [deltas])["choices"][0]
    assert whole["text"] == " world你er"
    assert whole["logprobs"]["tokens"] == [" world", "<0xE4>", "<0xBD>", "<0xA0>", "er"]
    assert whole["logprobs"]["text_offset"] == [0, 6, 6, 6, 7]
    chunks = [CompletionShape(service).chunk(job, 0, each)["choices"][0] for each in deltas]
    assert [each["logprobs"]["text_offset"] for each in chunks] == [[0], [6, 6, 6], [7]]
    content = ChatShape(service).whole(job, [deltas])["choices"][0]["logprobs"]["content"]
    assert bytes(byte for each in content for byte in each["bytes"]).decode() == whole["text"]
    assert content[1]["top_logprobs"][0]["bytes"] == [0xE4]
