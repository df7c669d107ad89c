"""A compiled decoder behind the engine and behind the server: its tokens are those of ONNX Runtime alone."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from collage.api import default_registry
from collage.serve import Engine, EngineOptions, Sampling
from collage.serve.model import open_runner
from collage.serve.runner import Slice
from tests.helpers.cli.helpers import json_of
from tests.helpers.serve.served import served

build = pytest.importorskip("collage.serve.decoder.build", reason="this checkout has no compiled decoders")


@pytest.fixture(scope="module")
def original() -> Any:
    from scripts.lib.decoders.build import decoder
    from scripts.lib.decoders.shape import NAMED, small

    model: onnx.ModelProto = decoder(small(NAMED["qwen2_like"], 2))
    return model


@pytest.fixture(scope="module")
def file(original: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from collage.serve.decoder.compile import DecoderOptions
    from collage.serve.decoder.file import save_decoder

    folder = tmp_path_factory.mktemp("decoder")
    options = DecoderOptions((1, 8, 32), threads=2, db=folder / "db.sqlite", quick=True, max_length=200)
    compiled = build.compile_decoder(original, options, default_registry(), lambda progress: None)
    save_decoder(compiled, folder / "small.collage")
    return folder / "small.collage"


def alone(original: Any, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
    from collage.serve.decoder.check import OriginalDecoder

    session = OriginalDecoder(original, 1)
    logits, cache = session.step(prompt, 0, session.empty_cache())
    tokens = [int(logits[-1].argmax())]
    while len(tokens) < count:
        logits, cache = session.step(tokens[-1:], len(prompt) + len(tokens) - 1, cache)
        tokens.append(int(logits[-1].argmax()))
    return tuple(tokens)


@pytest.mark.parametrize(
    "options",
    [
        EngineOptions(max_running=6),
        EngineOptions(max_running=6, policy="orca"),
        EngineOptions(max_running=8, itl_target_ms=0.5),
    ],
    ids=["chunked", "orca", "target"],
)
def test_the_engine_gives_the_tokens_of_onnx_runtime(original: Any, file: Path, options: EngineOptions) -> None:
    draw = random.Random(0)
    common = tuple(draw.randrange(256) for _ in range(70))
    prompts = [(*common[: draw.randint(1, 70)], draw.randrange(256)) for _ in range(12)]
    counts = [draw.randint(1, 40) for _ in prompts]
    runner = open_runner(file, block_count=24)
    with Engine(runner, options) as engine:
        streams = [
            engine.submit(prompt, Sampling(max_tokens=count, temperature=0))
            for prompt, count in zip(prompts, counts, strict=True)
        ]
        for prompt, count, stream in zip(prompts, counts, streams, strict=True):
            assert stream.result().tokens == alone(original, prompt, count)
    engine.check()
    runner.close()


@pytest.mark.parametrize("share", [True, False])
def test_weights_are_in_memory_of_its_own_or_in_the_file(share: bool, file: Path, tmp_path: Path) -> None:
    copy = shutil.copy(file, tmp_path / "other.collage")  # other tests have the file mapped
    prompt = Slice((1, 2, 3), 0, (5,), True)
    runner = open_runner(copy, block_count=24, share_weights=share)
    assert (str(copy.resolve()) in Path("/proc/self/maps").read_text()) == share
    np.testing.assert_array_equal(runner.step([prompt]), open_runner(file, block_count=24).step([prompt]))
    runner.close()


@pytest.mark.usefixtures("needs_server")
def test_the_server_gives_the_tokens_of_onnx_runtime(original: Any, file: Path) -> None:
    with served(file) as server:
        for prompt in ((1, 2, 3), tuple(range(100))):
            body = {"model": "m", "prompt": prompt, "max_tokens": 20, "temperature": 0}
            status, _, found = server.ask("POST", "/v1/completions", body)
            assert status == 200, found
            assert found["choices"][0]["token_ids"] == list(alone(original, prompt, 20))


@pytest.mark.usefixtures("needs_server")
def test_a_folder_tells_how_many_positions_there_are_and_what_ends_an_answer(original: Any, tmp_path: Path) -> None:
    """Neither is in the ONNX file of a decoder with rotary positions. A link leads to the file, as in caches."""
    ends = alone(original, (1, 2, 3), 9)
    folder, other = tmp_path / "qwen2", tmp_path / "other"
    (folder / "onnx").mkdir(parents=True)
    other.mkdir()
    onnx.save_model(original, str(tmp_path / "blob"))
    (folder / "onnx/model.onnx").symlink_to(tmp_path / "blob")
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 64, "eos_token_id": 255}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [254, ends[5]]}))
    options = ("--buckets", "1,8", "--threads", "2", "--quick", "--db", tmp_path / "db")
    about = json_of("compile-decoder", folder, "-o", other / "it.collage", *options, "--json")
    assert about["max_length"] == 64
    with served(other / "it.collage") as server:
        assert server.ask("GET", "/v1/models/m")[2]["max_model_len"] == 64
        asked = {"model": "m", "prompt": [1, 2, 3], "max_tokens": 20, "temperature": 0}
        (choice,) = server.ask("POST", "/v1/completions", asked)[2]["choices"]
        assert choice["finish_reason"] == "stop"
        assert choice["token_ids"] == list(ends[: ends.index(ends[5]) + 1])
        status, _, found = server.ask("POST", "/v1/completions", asked | {"max_tokens": 62})
        assert (status, found["error"]["code"]) == (400, "context_length_exceeded")


def test_a_cache_in_8_bits_with_preemption_and_shared_prefixes(file: Path) -> None:
    """A block holds the same numbers, whoever has computed it, and whether it is computed again."""
    draw = random.Random(1)
    common = tuple(draw.randrange(256) for _ in range(70))
    prompts = [(*common[: draw.randint(1, 70)], draw.randrange(256)) for _ in range(12)]
    sampling = Sampling(max_tokens=40, temperature=0)
    found: list[list[tuple[int, ...]]] = []
    for running, blocks in ((1, 60), (8, 7)):
        runner = open_runner(file, block_count=blocks, cache="int8")
        with Engine(runner, EngineOptions(max_running=running)) as engine:
            streams = [engine.submit(prompt, sampling) for prompt in prompts]
            found.append([each.result().tokens for each in streams])
            stats = engine.stats()
        engine.check()
        runner.close()
    assert stats.preemptions
    assert stats.cached_tokens
    # A last bit may differ with the number of tokens in an iteration, and then a number is rounded the other way.
    assert sum(one == other for one, other in zip(*found, strict=True)) >= 11
