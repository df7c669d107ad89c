"""Compiled decoders against ONNX Runtime on the original: any mix of chunks and single tokens, and greedy tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.api import default_registry, load
from collage.cli.main import main
from collage.core.progress import Progress
from collage.errors import CollageError, InputError, ModelError, ModuleFileError, UsageError
from collage.kernel.frames import Framed
from collage.serve.decoder.build import compile_decoder
from collage.serve.decoder.check import OriginalDecoder
from collage.serve.decoder.compile import DEFAULT_LENGTH, DecoderOptions, longest_sequence
from collage.serve.decoder.compiled import CompiledDecoder
from collage.serve.decoder.config import read_config
from collage.serve.decoder.costs import fastest_buckets
from collage.serve.decoder.file import load_decoder, save_decoder
from collage.serve.decoder.recognise import recognise
from collage.serve.decoder.runner import DecoderRunner
from collage.serve.model import blocks_of_one
from collage.serve.parallel.options import Parallelism
from collage.serve.runner import Slice
from scripts.lib.decoders.build import decoder
from scripts.lib.decoders.shape import ATTENTION, NAMED, PLAIN, DecoderShape, small

BLOCKS = 40
MODELS = {name: decoder(small(NAMED[name], 3)) for name in ("gpt2_124m", "qwen2_like")}


def quiet(progress: Progress) -> None:
    pass


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Segments of one structure are measured once for all decoders here."""
    return tmp_path_factory.mktemp("measured") / "db.sqlite"


def compiled(model: onnx.ModelProto, database: Path, buckets: tuple[int, ...]) -> CompiledDecoder:
    options = DecoderOptions(buckets, threads=2, db=database, quick=True, max_length=200)
    return compile_decoder(model, options, default_registry(), quiet)


@dataclass(frozen=True)
class Ready:
    """A decoder's file, the runner that was loaded from it, and the original."""

    path: Path
    runner: DecoderRunner
    original: OriginalDecoder


@pytest.fixture(scope="module", params=list(MODELS))
def ready(request: pytest.FixtureRequest, database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ready]:
    model = MODELS[request.param]
    path = tmp_path_factory.mktemp("decoder") / "it.collage"
    save_decoder(compiled(model, database, (2, 24)), path)
    runner = DecoderRunner(load_decoder(path, default_registry()), default_registry(), BLOCKS)
    yield Ready(path, runner, OriginalDecoder(model, 2))
    runner.close()


def error_of(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(found - wanted).max())


@settings(max_examples=15, deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=8), st.integers(0, 99))
def test_any_mix_of_chunks_and_single_tokens(ready: Ready, chunks: list[list[int]], seed: int) -> None:
    """Each iteration has some tokens of some of three sequences, whose blocks are anywhere in the cache."""
    random = np.random.default_rng(seed)
    sequences = [random.integers(0, 256, 90).tolist() for _ in range(3)]
    ids = random.permutation(BLOCKS).tolist()
    starts = [0, 0, 0]
    wanted = [ready.original.logits(each) for each in sequences]
    for counts in chunks:
        slices, rows = [], []
        for number in random.permutation(3):
            count = min(counts[number], 24 - sum(len(each.token_ids) for each in slices))
            if not count:
                continue
            part = tuple(sequences[number][starts[number] : starts[number] + count])
            wants = bool(random.integers(2))
            slices.append(Slice(part, starts[number], tuple(ids[number * 3 : number * 3 + 3]), wants))
            starts[number] += count
            if wants:
                rows.append(wanted[number][starts[number] - 1])
        if not slices:
            continue
        found = ready.runner.step(slices)
        assert found.shape == (len(rows), 256)
        assert not rows or error_of(found, np.stack(rows)) < 1e-3


def test_greedy_tokens_are_those_of_onnx_runtime(ready: Ready) -> None:
    """Two requests decode side by side; one of them came in chunks."""
    prompts = [[7, 200, 31, 5], list(range(100, 130))]
    blocks = [(11, 3), (8, 2, 30)]
    runner = ready.runner
    runner.step([Slice(tuple(prompts[1][:20]), 0, blocks[1], False)])
    first = runner.step(
        [Slice(tuple(prompts[0]), 0, blocks[0], True), Slice(tuple(prompts[1][20:]), 20, blocks[1], True)]
    )
    mine = [[int(row.argmax())] for row in first]
    for _ in range(24):
        slices = [
            Slice((tokens[-1],), len(prompt) + len(tokens) - 1, block, True)
            for prompt, tokens, block in zip(prompts, mine, blocks, strict=True)
        ]
        for tokens, row in zip(mine, runner.step(slices), strict=True):
            tokens.append(int(row.argmax()))
    for prompt, tokens in zip(prompts, mine, strict=True):
        logits, cache = ready.original.step(prompt, 0, ready.original.empty_cache())
        alone = [int(logits[-1].argmax())]
        while len(alone) < len(tokens):
            logits, cache = ready.original.step(alone[-1:], len(prompt) + len(alone) - 1, cache)
            alone.append(int(logits[-1].argmax()))
        assert tokens == alone


def test_padding_writes_nothing_to_the_cache(ready: Ready) -> None:
    """An iteration of 5 tokens is padded to 24, and other blocks keep what they hold."""
    other = list(range(40, 60))
    ready.runner.step([Slice(tuple(other), 0, (0,), True)])
    ready.runner.step([Slice((1, 2, 3, 4, 5), 0, (1,), True)])
    found = ready.runner.step([Slice((9,), 20, (0,), True)])
    assert error_of(found[0], ready.original.logits([*other, 9])[-1]) < 1e-3


def test_logits_of_more_requests_than_rows(ready: Ready, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last segment then runs several times, and what it has computed first is not overwritten."""
    monkeypatch.setattr(ready.runner._ends, "_buckets", (2,))
    tokens = [3, 50, 9, 120, 77]
    found = ready.runner.step([Slice((each,), 0, (number,), True) for number, each in enumerate(tokens)])
    wanted = np.stack([ready.original.logits([each])[0] for each in tokens])
    assert error_of(found, wanted) < 1e-3


def test_a_larger_bucket_is_used_where_it_is_faster(ready: Ready) -> None:
    """An iteration of two tokens then runs in the bucket of 24, whose time counts, and gives the same."""
    found = replace(load_decoder(ready.path, default_registry()), costs_ms={2: 9.0, 24: 3.0})
    runner = DecoderRunner(found, default_registry(), 3)
    assert runner.cost_ms(1) == runner.cost_ms(24) == 3.0
    del runner.iterations[2]
    logits = runner.step([Slice((7, 9), 0, (1,), True)])
    assert error_of(logits[0], ready.original.logits([7, 9])[-1]) < 1e-3
    assert fastest_buckets((1, 2, 4), {1: 2.0, 2: 1.99, 4: 3.0}) == {1: 1, 2: 2, 4: 4}
    assert fastest_buckets((1, 2), {}) == {1: 1, 2: 2}


@pytest.mark.parametrize(
    ("piece", "message"),
    [
        (Slice((), 0, (0,), True), "at least one token|1 to 24 tokens"),
        (Slice((256,), 0, (0,), True), "from 0 to 255"),
        (Slice((1,), 200, tuple(range(7)), True), "within 200 tokens"),
        (Slice((1,), 32, (0,), True), "do not hold 33 tokens"),
        (Slice((1,), 0, (BLOCKS,), True), f"from 0 to {BLOCKS - 1}"),
        (Slice((1,) * 25, 0, (0,), True), "1 to 24 tokens"),
    ],
)
def test_slices_that_do_not_fit(ready: Ready, piece: Slice, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ready.runner.step([piece])


def test_runners_beside_each_other_share_the_memory(ready: Ready, monkeypatch: pytest.MonkeyPatch) -> None:
    found = load_decoder(ready.path, default_registry())
    layers, least = len(found.decoder.layers), -(-found.max_length // ready.runner.block_tokens)
    free = 100 * least * layers * found.heads.block_bytes()
    monkeypatch.setattr("collage.serve.decoder.memory.free_bytes", lambda: free)

    def blocks(wanted: int | None, runners: int, parallelism: Parallelism | None = None) -> int | None:
        return blocks_of_one(ready.path, wanted, "float32", parallelism, runners)

    assert [blocks(None, runners) for runners in (1, 2, 3)] == [60 * least, 30 * least, 20 * least]
    assert blocks(None, 2, Parallelism("tensor", 2)) == 15 * least
    assert blocks(5, 10) == 5
    with pytest.raises(UsageError, match=f"ask for at most {95 * least // 2} blocks"):
        blocks(60 * least, 2)


@pytest.mark.parametrize(("cache", "size"), [("bfloat16", 0.5), ("int8", 0.32)])
def test_rounded_caches(ready: Ready, cache: str, size: float) -> None:
    """They are smaller, and cost two or three digits of the logits."""
    found = load_decoder(ready.path, default_registry())
    assert found.heads.block_bytes(cache) <= size * found.heads.block_bytes()
    runner = DecoderRunner(found, default_registry(), 3, cache)
    tokens = list(range(60, 120))
    runner.step([Slice(tuple(tokens[:24]), 0, (2,), False)])
    rows = [
        runner.step([Slice(tuple(tokens[at : at + 12]), at, (2, 0), True)])[0].copy()
        for at in range(24, len(tokens), 12)
    ]
    error = error_of(np.stack(rows), ready.original.logits(tokens)[35::12])
    assert 1e-5 < error < 0.1
    with pytest.raises(UsageError, match="unknown type of the cache: float8"):
        DecoderRunner(found, default_registry(), 3, "float8")


def test_buckets_share_weights(ready: Ready) -> None:
    """A weight is stored once for each order in which kernels read it, and these are two at most."""
    found = load_decoder(ready.path, default_registry())
    modules = [each for parts in found.segments.values() for each in parts] + list(found.ends.values())
    arrays = [
        array
        for parts in modules
        for artifact in parts.artifacts
        if isinstance(artifact, Framed)
        for array in artifact.arrays
        if len(array) == 4 * 64 * 128  # a product of a feed-forward network, of which each layer has two or three
    ]
    products = 3 * (2 if "position_ids" in found.wiring[0].reads else 3)
    assert len(arrays) == 2 * products
    assert len({bytes(array) for array in arrays}) <= 2 * products
    places = {np.frombuffer(array, np.uint8).ctypes.data for array in arrays}
    assert len(places) == len({bytes(array) for array in arrays})


def test_a_decoder_is_no_module(ready: Ready, tmp_path: Path) -> None:
    with pytest.raises(ModuleFileError, match="is a compiled decoder, not a module"):
        load(ready.path)
    data = bytearray(ready.path.read_bytes())
    data[len(data) // 2] ^= 255
    broken = tmp_path / "broken.collage"
    broken.write_bytes(data[: len(data) // 2])
    with pytest.raises(ModuleFileError, match="damaged"):
        load_decoder(broken, default_registry())


def test_other_heads_than_the_layers_have(ready: Ready, tmp_path: Path) -> None:
    """The kernel would write beyond its rows."""
    found = load_decoder(ready.path, default_registry())
    wider = replace(found.heads, heads=2 * found.heads.heads, kv_heads=2 * found.heads.kv_heads)
    layers = tuple(replace(each, heads=wider) for each in found.attention)
    save_decoder(replace(found, attention=layers), tmp_path / "it.collage")
    with pytest.raises(ModuleFileError, match="damaged"):
        load_decoder(tmp_path / "it.collage", default_registry())


@pytest.mark.parametrize(
    "shape",
    [
        replace(small(NAMED["gpt2_124m"], 1), form=PLAIN),
        replace(small(NAMED["qwen2_like"], 1), form=ATTENTION),
        replace(small(NAMED["qwen2_like"], 1), pairs=True, rotary=8),
    ],
    ids=["plain", "operator", "pairs"],
)
def test_other_forms_of_attention(shape: DecoderShape, database: Path) -> None:
    model = decoder(shape)
    runner = DecoderRunner(compiled(model, database, (24,)), default_registry(), 4)
    tokens = list(range(30, 50))
    found = [runner.step([Slice(tuple(tokens[at : at + 5]), at, (2,), True)])[0].copy() for at in range(0, 20, 5)]
    wanted = OriginalDecoder(model, 2).logits(tokens)[4::5]
    assert error_of(np.stack(found), wanted) < 1e-3


def test_attention_that_is_not_causal_is_refused(database: Path) -> None:
    """It has the form of a decoder, and only its numbers show that tokens look ahead."""
    model = decoder(replace(small(NAMED["gpt2_124m"], 1), form=PLAIN))
    for node in model.graph.node:
        if node.op_type == "Greater":
            node.op_type = "Less"  # a token sees itself and those after it
    with pytest.raises(ModelError, match="not causal"):
        compiled(model, database, (24,))


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        ({"n_positions": 1024, "n_ctx": 512}, 1024),
        ({"max_position_embeddings": 131072}, 131072),
        ({"text_config": {"max_position_embeddings": 2048}}, 2048),
        ({}, None),
        # The angles of longer sequences are others, which no file has.
        (
            {
                "max_position_embeddings": 131072,
                "original_max_position_embeddings": 4096,
                "rope_scaling": {"type": "longrope", "long_factor": [1.0], "short_factor": [1.0]},
            },
            4096,
        ),
        (
            {
                "max_position_embeddings": 131072,
                "rope_scaling": {"rope_type": "llama3", "original_max_position_embeddings": 8192},
            },
            131072,
        ),
    ],
    ids=str,
)
def test_positions_that_a_config_names(config: dict[str, Any], positions: int | None, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_config(tmp_path / "it.onnx").positions == positions
    assert read_config(tmp_path / "onnx/it.onnx").positions == positions


@pytest.mark.parametrize(
    ("name", "value"), [("n_positions", "many"), ("n_positions", -3), ("eos_token_id", "x")], ids=str
)
def test_a_config_without_sense(name: str, value: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({name: value}))
    with pytest.raises(CollageError, match=rf"config.json says that {name} is {value!r}: correct that"):
        read_config(tmp_path / "it.onnx")


@pytest.mark.parametrize(
    ("name", "positions", "wanted", "longest"),
    [
        ("gpt2_124m", 128, None, 128),
        ("gpt2_124m", 512, None, 256),
        ("qwen2_like", 1024, None, 1024),
        ("qwen2_like", 131072, None, DEFAULT_LENGTH),
        ("qwen2_like", 1024, 5000, 5000),
    ],
)
def test_the_longest_sequence(name: str, positions: int | None, wanted: int | None, longest: int) -> None:
    decoder, _ = recognise(MODELS[name], name)
    assert longest_sequence(decoder, wanted, name, positions) == longest
    with pytest.raises(UsageError, match="at least 1"):
        longest_sequence(decoder, 0, name, positions)


def test_command(database: Path, tmp_path: Path) -> None:
    model, output = tmp_path / "it.onnx", tmp_path / "it.collage"
    onnx.save_model(decoder(small(NAMED["gpt2_124m"], 1)), str(model))
    options = ("--db", str(database), "--quick", "--threads", "2")
    command = ["compile-decoder", str(model), "-o", str(output), *options]
    done = CliRunner().invoke(main, [*command, "--buckets", "24", "--max-length", "90", "--json"])
    assert not done.exit_code, done.output
    about = json.loads(done.stdout)
    assert (about["layers"], about["vocabulary"], about["max_length"]) == (1, 256, 90)
    assert about["costs_ms"].keys() == {"24"}
    assert load_decoder(output, default_registry()).buckets == (24,)
    refused = CliRunner().invoke(main, [*command, "--buckets", "24,many"])
    assert refused.exit_code == 2 and "write them as 1,8,64" in refused.output
    empty = tmp_path / "empty"
    empty.mkdir()
    refused = CliRunner().invoke(main, ["compile-decoder", str(empty), "-o", str(output)])
    assert refused.exit_code == 1 and "there is no *.onnx in" in refused.output
