"""Decoders whose layers score keys in ways of their own: windows, slopes by distance, softcaps, several rotations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage.api import default_registry
from collage.core.progress import Progress
from collage.errors import ModelError
from collage.serve.decoder.build import compile_decoder, compile_divided
from collage.serve.decoder.check import OriginalDecoder
from collage.serve.decoder.compile import DecoderOptions
from collage.serve.decoder.compiled import IDS, MASK, POSITIONS, Decoder
from collage.serve.decoder.file import load_decoder, save_decoder
from collage.serve.decoder.masks import with_masks
from collage.serve.decoder.recognise import recognise
from collage.serve.decoder.runner import DecoderRunner
from collage.serve.runner import Slice
from scripts.lib.decoders.build import decoder
from scripts.lib.decoders.shape import NAMED, PLAIN, small

GPT2, QWEN2 = small(NAMED["gpt2_124m"], 2), small(NAMED["qwen2_like"], 2)
SLOPES = (0.5, 0.25, 0.125, 0.0625)
SINKS = (1.0, -2.0, 3.0, 0.0)
Change = Callable[[onnx.ModelProto], None]


def quiet(progress: Progress) -> None:
    pass


def weight(model: onnx.ModelProto, name: str, value: Any) -> str:
    if name not in {tensor.name for tensor in model.graph.initializer}:
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return name


def insert(model: onnx.ModelProto, before: str, nodes: list[onnx.NodeProto]) -> None:
    """Put nodes before the one that makes a value, or before all others where none does."""
    places = [place for place, node in enumerate(model.graph.node) if before in node.output]
    for node in nodes[::-1]:
        model.graph.node.insert(places[0] if places else 0, node)


def distances(model: onnx.ModelProto) -> str:
    """How far each key is behind each new token [batch, 1, token, key]."""
    if not any("distances" in node.output for node in model.graph.node):
        source = MASK if MASK in {info.name for info in model.graph.input} else IDS
        for name, value in (("zero", 0), ("unit", 1)):
            weight(model, name, np.int64(value))
        for name, axis in (("heads_axis", 1), ("keys_axis", 3)):
            weight(model, name, np.array([axis]))
        insert(
            model,
            "",
            [
                helper.make_node("Shape", [source], ["sizes"]),
                helper.make_node("Gather", ["sizes", "unit"], ["whole"]),
                helper.make_node("Range", ["zero", "whole", "unit"], ["key_places"]),
                helper.make_node("Unsqueeze", [POSITIONS, "heads_axis"], ["row"]),
                helper.make_node("Unsqueeze", ["row", "keys_axis"], ["column"]),
                helper.make_node("Sub", ["column", "key_places"], ["distances"]),
            ],
        )
    return "distances"


def softmax(model: onnx.ModelProto, layer: int) -> onnx.NodeProto:
    return [node for node in model.graph.node if node.op_type == "Softmax"][layer]


def with_window(size: int, layer: int = -1) -> Change:
    """A token of that layer sees so many tokens."""

    def change(model: onnx.ModelProto) -> None:
        node, tag = softmax(model, layer), f"window{layer}"
        weight(model, "low", np.float32(-np.inf))
        made = [
            helper.make_node("Less", [distances(model), weight(model, f"size{tag}", np.int64(size))], [f"{tag}.near"]),
            helper.make_node("Where", [f"{tag}.near", node.input[0], "low"], [f"{tag}.seen"], tag),
        ]
        insert(model, node.output[0], made)
        node.input[0] = f"{tag}.seen"

    return change


def with_slopes(model: onnx.ModelProto) -> None:
    """Heads lose something for each token between q and k, in all layers."""
    values = weight(model, "slopes", -np.array(SLOPES, np.float32).reshape(1, 4, 1, 1))
    insert(model, softmax(model, 0).output[0], [
        helper.make_node("Cast", [distances(model)], ["far"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["far", values], ["loss"]),
    ])  # fmt: skip
    for layer in range(2):
        node = softmax(model, layer)
        insert(model, node.output[0], [helper.make_node("Add", ["loss", node.input[0]], [f"biased{layer}"])])
        node.input[0] = f"biased{layer}"


def with_softcap(model: onnx.ModelProto) -> None:
    """Scores of the last layer are bounded before they are masked."""
    mask = next(node for node in model.graph.node if softmax(model, -1).input[0] in node.output)
    scores = weight(model, "cap", np.float32(2.0))
    insert(model, mask.output[0], [
        helper.make_node("Div", [mask.input[0], scores], ["part"]),
        helper.make_node("Tanh", ["part"], ["bounded"]),
        helper.make_node("Mul", ["bounded", scores], ["capped"]),
    ])  # fmt: skip
    mask.input[0] = "capped"


def without_nan(model: onnx.ModelProto) -> None:
    """As PyTorch exports weights of attention."""
    weight(model, "nothing", np.float32(0))
    for layer in range(2):
        made = softmax(model, layer).output[0]
        after = next(node for node in model.graph.node if made in node.input)
        insert(model, after.output[0], [
            helper.make_node("IsNaN", [made], [f"odd{layer}"]),
            helper.make_node("Where", [f"odd{layer}", "nothing", made], [f"safe{layer}"]),
        ])  # fmt: skip
        after.input[0] = f"safe{layer}"


def with_sinks(model: onnx.ModelProto) -> None:
    """Each head has a score beside those of keys, as gpt-oss has it in PyTorch's exports."""
    weight(model, "sinks", np.array(SINKS, np.float32).reshape(1, 4, 1, 1))
    for name, value in (
        ("first", 0),
        ("second", 1),
        ("minus_one", -1),
        ("last", 3),
        ("sliced_from", 0),
        ("sliced_to", -1),
    ):
        weight(model, name, np.array([value]))
    for layer in range(2):
        node, tag = softmax(model, layer), f"sink{layer}"
        scores, made = node.input[0], node.output[0]
        after = next(each for each in model.graph.node if made in each.input)
        insert(model, made, [
            helper.make_node("Shape", [scores], [f"{tag}.sizes"]),
            helper.make_node("Slice", [f"{tag}.sizes", "first", "minus_one"], [f"{tag}.rows"]),
            helper.make_node("Concat", [f"{tag}.rows", "second"], [f"{tag}.shape"], axis=0),
            helper.make_node("Expand", ["sinks", f"{tag}.shape"], [f"{tag}.sinks"]),
            helper.make_node("Concat", [scores, f"{tag}.sinks"], [f"{tag}.all"], axis=-1),
            helper.make_node("ReduceMax", [f"{tag}.all"], [f"{tag}.most"], axes=[-1], keepdims=1),
            helper.make_node("Sub", [f"{tag}.all", f"{tag}.most"], [f"{tag}.less"]),
        ])  # fmt: skip
        node.input[0] = f"{tag}.less"
        dropped = helper.make_node("Slice", [made, "sliced_from", "sliced_to", "last"], [f"{tag}.weights"])
        insert(model, after.output[0], [dropped])
        after.input[0] = f"{tag}.weights"


def with_other_angles(model: onnx.ModelProto) -> None:
    """The second layer rotates more slowly than the first one."""
    slow = weight(model, "slow", np.float32(0.1))
    new = []
    for node in model.graph.node:
        if node.op_type in ("Cos", "Sin"):
            name = f"slow.{node.op_type}"
            new += [
                helper.make_node("Mul", [node.input[0], slow], [f"{name}.angles"]),
                helper.make_node(node.op_type, [f"{name}.angles"], [name]),
            ]
    users = [node for node in model.graph.node if node.op_type == "Mul" and node.input[1].startswith("rotary.")]
    assert len(users) == 8  # q and k of two layers, by cos and sin
    insert(model, users[4].output[0], new)
    for node in users[4:]:
        node.input[1] = {"rotary.cos": "slow.Cos", "rotary.sin": "slow.Sin"}[node.input[1]]


def changed(model: onnx.ModelProto, *changes: Change) -> onnx.ModelProto:
    for change in changes:
        change(model)
    return model


def masked(model: onnx.ModelProto, length: int) -> Decoder:
    found, graph = recognise(model, "it")
    return with_masks(model, graph, found, length)


def options(tmp_path: Path, processes: int = 1) -> DecoderOptions:
    db = tmp_path / "db.sqlite"
    return DecoderOptions((1, 24), threads=2, db=db, quick=True, max_length=200, processes=processes)


@pytest.mark.parametrize(
    ("shape", "changes", "allowed"),
    [
        (GPT2, [with_window(20)], 1e-4),
        (QWEN2, [with_window(100, 0), with_window(33)], 1e-4),
        (GPT2, [with_slopes, with_window(90), without_nan], 1e-4),
        (QWEN2, [with_softcap, without_nan, with_other_angles], 1e-4),
        (QWEN2, [with_window(20), with_sinks], 1e-4),
    ],
    ids=["window", "windows", "slopes", "softcap", "sinks"],
)
def test_logits_are_those_of_onnx_runtime(shape: Any, changes: list[Change], allowed: float, tmp_path: Path) -> None:
    """Also beyond the tokens that a compile compares."""
    model = changed(decoder(shape), *changes)
    save_decoder(compile_decoder(model, options(tmp_path), default_registry(), quiet), tmp_path / "it.collage")
    runner = DecoderRunner(load_decoder(tmp_path / "it.collage", default_registry()), default_registry(), 8)
    tokens = np.random.default_rng(0).integers(0, runner.vocabulary, 170).tolist()
    wanted = OriginalDecoder(model, 2).logits(tokens)
    start, worst = 0, 0.0
    for size in [24, 1, 24, 24, 7, 24, 24, 24, *[1] * 18]:
        part = tuple(tokens[start : start + size])
        found = runner.step([Slice(part, start, (5, 2, 7, 0, 3, 1), True)])[0]
        start += size
        worst = max(worst, float(np.abs(found - wanted[start - 1]).max()))
    runner.close()
    assert start == 170
    assert worst <= allowed * max(1.0, float(np.abs(wanted).max()))


def test_heads_of_processes_have_their_own_slopes_and_sinks(tmp_path: Path) -> None:
    """What is divided is compared with ONNX Runtime as it is compiled."""
    model = changed(decoder(replace(QWEN2, kv_heads=2)), with_slopes, with_sinks)
    parts = compile_divided(model, options(tmp_path, 2), default_registry(), quiet)
    slopes = [[layer.heads.slopes for layer in part.attention] for part in parts]
    assert slopes == [[pytest.approx(SLOPES[:2])] * 2, [pytest.approx(SLOPES[2:])] * 2]
    sinks = [[layer.heads.sinks for layer in part.attention] for part in parts]
    assert sinks == [[SINKS[:2]] * 2, [SINKS[2:]] * 2]


@pytest.mark.parametrize("shape", [GPT2, QWEN2, replace(GPT2, form=PLAIN)], ids=["gpt2", "qwen2", "plain"])
def test_windows_of_layers(shape: Any) -> None:
    model = changed(decoder(shape), with_window(100) if shape.form != PLAIN else with_window(100, 0))
    windows = [layer.window for layer in masked(model, 250).layers]
    assert windows == ([0, 100] if shape.form != PLAIN else [100, 0])
    assert [layer.window for layer in masked(model, 101).layers] == windows
    assert [layer.window for layer in masked(model, 100).layers] == [0, 0]


def bent(model: onnx.ModelProto) -> None:
    """A bias that is no straight line: T5's, and others that are learned by distance."""
    root = weight(model, "root", np.float32(0.5))
    node = softmax(model, -1)
    insert(model, node.output[0], [
        helper.make_node("Cast", [distances(model)], ["far"], to=TensorProto.FLOAT),
        helper.make_node("Abs", ["far"], ["size"]),
        helper.make_node("Pow", ["size", root], ["bend"]),
        helper.make_node("Sub", [node.input[0], "bend"], ["masked"], "mask"),
    ])  # fmt: skip
    node.input[0] = "masked"


def a_window_that_grows(model: onnx.ModelProto) -> None:
    """Half of the sequence."""
    node = softmax(model, -1)
    weight(model, "low", np.float32(-1e9))
    distances(model)
    insert(model, node.output[0], [
        helper.make_node("Div", ["whole", weight(model, "two", np.int64(2))], ["half"]),
        helper.make_node("Less", ["distances", "half"], ["near"]),
        helper.make_node("Where", ["near", node.input[0], "low"], ["masked"], "mask"),
    ])  # fmt: skip
    node.input[0] = "masked"


def a_short_table(model: onnx.ModelProto) -> None:
    """What heads lose by distance is a table of 64 tokens, as MPT's exports have it."""
    far = np.arange(-63, 1, dtype=np.float32) * np.array(SLOPES, np.float32)[:, None, None]
    node, table = softmax(model, -1), weight(model, "table", far[None])
    distances(model)
    for name, value in (("first_axis", 0), ("end", 2**31), ("keys", 3)):
        weight(model, name, np.array([value]))
    insert(model, node.output[0], [
        helper.make_node("Neg", ["whole"], ["minus"]),
        helper.make_node("Unsqueeze", ["minus", "first_axis"], ["begin"]),
        helper.make_node("Slice", [table, "begin", "end", "keys"], ["loss"]),
        helper.make_node("Add", [node.input[0], "loss"], ["masked"], "mask"),
    ])  # fmt: skip
    node.input[0] = "masked"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (a_short_table, "has a mask of 1x4x1x64 elements in a sequence of 200 tokens.*--max-length"),
        (bent, r"node mask \(Sub\) lets the last of \d+ tokens see others neither alike"),
        (a_window_that_grows, "sees other tokens in a sequence of 200 than in one of 120"),
    ],
)
def test_other_masks_are_refused(change: Change, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        masked(changed(decoder(QWEN2), change), 200)
