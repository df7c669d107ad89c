"""Decoders whose heads of v have another size than those of q and k, as DeepSeek's latent attention has them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from collage.api import default_registry
from collage.core.progress import Progress
from collage.errors import ModelError
from collage.serve.decoder.build import compile_decoder, compile_divided
from collage.serve.decoder.check import OriginalDecoder
from collage.serve.decoder.compile import DecoderOptions
from collage.serve.decoder.compiled import CompiledDecoder
from collage.serve.decoder.file import load_decoder, save_decoder
from collage.serve.decoder.recognise import recognise
from collage.serve.decoder.runner import DecoderRunner
from collage.serve.runner import Slice
from scripts.lib.decoders.build import decoder
from scripts.lib.decoders.shape import ATTENTION, NAMED, PAST, PLAIN, small
from tests.helpers.models import make_model

GROUPED = replace(small(NAMED["qwen2_like"], 2), values=24)
LATENT = replace(GROUPED, kv_heads=4, values=12, latent=32, rotary=8, pairs=True)
LENGTH = 120


def quiet(progress: Progress) -> None:
    pass


def options(folder: Path, processes: int = 1) -> DecoderOptions:
    db = folder / "db.sqlite"
    return DecoderOptions((1, 24), threads=2, db=db, quick=True, max_length=200, processes=processes)


@dataclass(frozen=True)
class Ready:
    """A compiled decoder, its file, and the logits [token, vocabulary] of ONNX Runtime for some tokens."""

    compiled: CompiledDecoder
    path: Path
    tokens: list[int]
    wanted: Any
    original: OriginalDecoder


@pytest.fixture(scope="module", params=[LATENT, replace(GROUPED, form=ATTENTION)], ids=["latent", "operator"])
def ready(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ready:
    folder = tmp_path_factory.mktemp("values")
    model = decoder(request.param)
    compiled = compile_decoder(model, options(folder), default_registry(), quiet)
    save_decoder(compiled, folder / "it.collage")
    tokens = np.random.default_rng(0).integers(0, 256, LENGTH).tolist()
    original = OriginalDecoder(model, 2)
    return Ready(compiled, folder / "it.collage", tokens, original.logits(tokens), original)


def error_of(runner: DecoderRunner, ready: Ready) -> float:
    """The largest error of a logit, of chunks and of single tokens."""
    start, worst = 0, 0.0
    for size in [24, 1, 24, 7, 24, 24, *[1] * 16]:
        part = tuple(ready.tokens[start : start + size])
        found = runner.step([Slice(part, start, (5, 2, 7, 0), True)])[0]
        start += size
        worst = max(worst, float(np.abs(found - ready.wanted[start - 1]).max()))
    assert start == LENGTH
    return worst


@pytest.mark.parametrize("form", [PAST, ATTENTION, PLAIN])
@pytest.mark.parametrize("pairs", [False, True])
def test_latent_attention_is_recognised(form: str, pairs: bool) -> None:
    """The rotation of the last elements, and what all heads of k share, stay in the segments."""
    found, _ = recognise(decoder(replace(LATENT, form=form, pairs=pairs)), "it")
    for layer in found.layers:
        assert (layer.heads, layer.kv_heads, layer.dim, layer.value_dim) == (4, 4, 16, 12)
        assert layer.scale == pytest.approx(0.25)
        assert layer.rotation is None


def of_widths(q: int, k: int, v: int, heads: int, kv_heads: int) -> onnx.ModelProto:
    """One layer of ONNX's Attention on rows [batch, sequence, width] of these widths."""
    group = heads // kv_heads
    sizes = {"e": (50, 32), "q": (32, q), "k": (32, k), "v": (32, v), "o": (v * group, 50)}
    weights = {name: np.zeros(shape, np.float32) for name, shape in sizes.items()}
    nodes = [
        helper.make_node("Gather", ["e", "input_ids"], ["x"]),
        *(helper.make_node("MatMul", ["x", name], [f"{name}x"]) for name in "qkv"),
        helper.make_node(
            "Attention",
            ["qx", "kx", "vx"],
            ["a"],
            "att",
            is_causal=1,
            q_num_heads=heads,
            kv_num_heads=kv_heads,
        ),
        helper.make_node("MatMul", ["a", "o"], ["logits"]),
    ]
    types = {"input_ids": TensorProto.INT64}
    return make_model(nodes, {"input_ids": ["b", "s"]}, {"logits": ["b", "s", 50]}, weights, opset=23, types=types)


def test_operands_without_heads() -> None:
    """The operator tells the numbers of heads, and the rows their sizes."""
    (layer,) = recognise(of_widths(48, 24, 16, 4, 2), "it")[0].layers
    assert layer.sizes == (4, 2, 12, 8)


def test_values_with_other_heads_than_keys_are_refused() -> None:
    """Here all heads share one of k, and each has one of v."""
    model, shared = (decoder(replace(GROUPED, kv_heads=heads, form=PLAIN, bias=False)) for heads in (4, 1))
    keys = {each.name: each for each in shared.graph.initializer if each.name.endswith(".attn.k")}
    for tensor in model.graph.initializer:
        if tensor.name in keys:
            tensor.CopyFrom(keys[tensor.name])
    message = "reads rows of 64, 16 and 96 elements for q, k and v, which are no heads of 16 elements, and of 24 for v"
    with pytest.raises(ModelError, match=message):
        recognise(model, "it")


@pytest.mark.parametrize(("cache", "allowed"), [("float32", 1e-4), ("bfloat16", 5e-2), ("int8", 0.1)])
def test_logits_are_those_of_onnx_runtime(ready: Ready, cache: str, allowed: float) -> None:
    found = load_decoder(ready.path, default_registry())
    assert [each.heads.sizes for each in found.attention] == [each.sizes for each in found.decoder.layers]
    assert found.heads.value_dim != found.heads.dim
    runner = DecoderRunner(found, default_registry(), 8, cache)
    held = sum(each.keys.nbytes + each.values.nbytes + each.scales.nbytes for each in runner.caches)
    assert held == 8 * 2 * found.heads.block_bytes(cache)
    assert error_of(runner, ready) <= allowed * max(1.0, float(np.abs(ready.wanted).max()))
    runner.close()


def test_heads_are_divided_among_processes(tmp_path: Path) -> None:
    """What is divided is compared with ONNX Runtime as it is compiled."""
    parts = compile_divided(decoder(GROUPED), options(tmp_path, 2), default_registry(), quiet)
    assert [[layer.heads.sizes for layer in part.attention] for part in parts] == [[(2, 1, 16, 24)] * 2] * 2


def test_latent_attention_is_not_divided_by_heads(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="whose columns cannot be divided by heads: this decoder cannot be"):
        compile_divided(decoder(LATENT), options(tmp_path, 2), default_registry(), quiet)
