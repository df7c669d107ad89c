"""Tensor parallelism: segments on some heads and columns, against whole ones, in threads and on real processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.api import default_registry
from collage.cli.main import main
from collage.errors import ModelError, UsageError
from collage.serve import Engine, EngineOptions, Sampling
from collage.serve.decoder.check import OriginalDecoder
from collage.serve.decoder.file import load_decoder
from collage.serve.decoder.onnx_graph import PROBE, GraphSizes, read_graph
from collage.serve.decoder.recognise import recognise
from collage.serve.decoder.runner import DecoderRunner
from collage.serve.decoder.segments import cut, structure
from collage.serve.decoder.shards import Shards, shard
from collage.serve.model import open_runner
from collage.serve.parallel.options import Parallelism
from collage.serve.parallel.tensor_rank import ThreadRunner
from scripts.lib.decoders.build import decoder
from scripts.lib.decoders.shape import ATTENTION, NAMED, DecoderShape, small
from scripts.lib.traffic import tensor_bytes
from tests.helpers.serve.parallel.fixtures import Ready
from tests.helpers.serve.parallel.mixes import Mix
from tests.helpers.serve.parallel.running import BLOCKS, answers, running

LAYERS = 2


@dataclass(frozen=True)
class Divided:
    """A decoder's file with the parts of two processes, and the original."""

    path: Path
    shape: DecoderShape
    original: onnx.ModelProto


@pytest.fixture(scope="module", params=["gpt2_124m", "qwen2_like"])
def divided(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Divided:
    """Made by the command."""
    folder = tmp_path_factory.mktemp("divided")
    shape = small(NAMED[request.param], LAYERS)
    model = decoder(shape)
    source, path = folder / "it.onnx", folder / "it.collage"
    onnx.save_model(model, str(source))
    options = ["--buckets", "24", "--threads", "1", "--quick", "--db", str(folder / "db"), "--json"]
    done = CliRunner().invoke(
        main, ["compile-decoder", str(source), "-o", str(path), "--tensor-parallel", "2", *options]
    )
    assert not done.exit_code, done.output
    assert json.loads(done.stdout)["processes"] == 2
    return Divided(path, shape, model)


@pytest.fixture(scope="module")
def runner(divided: Divided) -> Iterator[ThreadRunner]:
    parts = [load_decoder(divided.path, default_registry(), rank=rank) for rank in range(2)]
    found = ThreadRunner(parts, default_registry(), BLOCKS)
    yield found
    found.close()


@settings(max_examples=12, deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=6), st.integers(0, 99))
def test_any_mix_is_right(divided: Divided, runner: ThreadRunner, counts: list[list[int]], seed: int) -> None:
    """Logits are those of ONNX Runtime on the whole decoder, and each layer sends two all-reduces."""
    original = OriginalDecoder(divided.original, 1)
    mix = Mix(3, 90, BLOCKS, seed)
    wanted = [original.logits(each) for each in mix.tokens]
    for each in counts:
        slices = mix.slices(each, 24)
        if not slices:
            continue
        before = sum(end.sent_bytes for end in runner.ends)
        found = runner.step(slices)
        sent = sum(end.sent_bytes for end in runner.ends) - before
        tokens = sum(len(each.token_ids) for each in slices)
        assert sent == LAYERS * tensor_bytes(tokens, divided.shape.width, 2)
        rows = [
            wanted[mix.sequence_of(part)][part.start + len(part.token_ids) - 1] for part in slices if part.wants_logits
        ]
        for row, expected_row in zip(found, rows, strict=True):
            assert np.abs(row - expected_row).max() < 1e-3


@pytest.mark.parametrize("name", ["gpt2_124m", "qwen2_like"])
@pytest.mark.parametrize("form", ["past", ATTENTION])
def test_each_process_has_its_part_of_every_product(name: str, form: str) -> None:
    """The parts of all processes have the same structure, and hold each weight of a product once."""
    model = decoder(replace(small(NAMED[name], 2), form=form))
    description, _ = recognise(model, name)
    graph = read_graph(model, GraphSizes(4, PROBE.past))
    segments = cut(graph, description)
    parts = [shard(graph, segments, description, rank, 2) for rank in range(2)]
    assert [structure(each) for each in parts[0].segments] == [structure(each) for each in parts[1].segments]
    assert [each.layer for each in parts[0].after] == [0, -1, -1, 1, -1, -1]
    shape, seen = small(NAMED[name], 2), []
    for part in (Shards(tuple(segments), (), description), *parts):
        tensors = {
            key: tensor.dims for each in part.segments for key, tensor in each.weights.items() if "layers" in key
        }
        seen.append(sum(int(np.prod(dims)) for dims in tensors.values() if len(dims) == 2))
    gates = 2 if name == "gpt2_124m" else 3
    attention = 2 * shape.width**2 + 2 * shape.width * shape.kv_heads * shape.head
    assert seen[0] == 2 * (attention + gates * shape.width * shape.inner)
    assert seen[1] == seen[2] == seen[0] // 2


def test_heads_that_cannot_be_divided_are_refused() -> None:
    model = decoder(small(NAMED["qwen2_like"], 1))
    description, _ = recognise(model, "it")
    graph = read_graph(model, GraphSizes(4, PROBE.past))
    with pytest.raises(UsageError, match="4 heads with 2 K/V heads cannot be divided among 4 processes"):
        shard(graph, cut(graph, description), description, 0, 4)


def test_attention_whose_output_is_normed_is_refused() -> None:
    """Its rows have to be whole before the products that follow."""
    model = decoder(small(NAMED["gpt2_124m"], 1))
    node = next(each for each in model.graph.node if each.name.endswith("layers.0/MatMul_2"))
    norm = onnx.helper.make_node("LpNormalization", [node.input[0]], ["normed"], "normed", axis=-1, p=2)
    model.graph.node.insert(list(model.graph.node).index(node), norm)
    next(each for each in model.graph.node if each.name == node.name).input[0] = "normed"
    description, _ = recognise(model, "it")
    graph = read_graph(model, GraphSizes(4, PROBE.past))
    with pytest.raises(ModelError, match=r"node normed \(LpNormalization\) needs whole rows of attention's output"):
        shard(graph, cut(graph, description), description, 0, 2)


def test_a_feed_forward_part_beside_attention_is_refused() -> None:
    """Its sum would have to be made after the attention, with nothing of the same segment behind it."""
    model = decoder(small(NAMED["qwen2_like"], 1))
    products = [each for each in model.graph.node if each.op_type == "MatMul" and "layers.0" in each.name]
    first, (gate, up, _) = products[0], products[-3:]
    assert gate.input[0] == up.input[0] != first.input[0]
    gate.input[0] = up.input[0] = first.input[0]
    description, _ = recognise(model, "it")
    graph = read_graph(model, GraphSizes(4, PROBE.past))
    with pytest.raises(ModelError, match=r"of a feed-forward part beside the attention: this decoder cannot be"):
        shard(graph, cut(graph, description), description, 0, 2)


def test_on_processes(divided: Divided) -> None:
    """Greedy tokens of many requests are those of ONNX Runtime alone."""
    pytest.importorskip("torch", reason="torch is missing: pip install 'collage-compiler[parallel]'")
    original = OriginalDecoder(divided.original, 1)
    with running(divided.path, "tensor") as runner:
        found = answers(runner, EngineOptions(max_running=3))
        with Engine(runner) as engine:
            prompt = (5, 6, 7)
            (token,) = engine.submit(prompt, Sampling(max_tokens=1, temperature=0)).result().tokens
    assert token == int(original.logits(prompt)[-1].argmax())
    assert [len(each) for each in found] == [10 + 7 * n for n in range(5)]


def test_the_wrong_number_of_processes_is_refused(divided: Divided, qwen: Ready) -> None:
    with pytest.raises(UsageError, match="serve it with --parallel tensor"):
        DecoderRunner(load_decoder(divided.path, default_registry()), default_registry(), BLOCKS)
    for kind, processes in (("tensor", 3), ("cache", 2)):
        with pytest.raises(UsageError, match="compiled for 2 processes of tensor parallelism"):
            open_runner(divided.path, BLOCKS, parallelism=Parallelism(kind, processes))
    with pytest.raises(UsageError, match="compile it with --tensor-parallel 2"):
        open_runner(qwen.path, BLOCKS, parallelism=Parallelism("tensor", 2))
