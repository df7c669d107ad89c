"""Masks and tables of positions that serving cannot follow are refused, and those that it can are read whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage.api import default_registry
from collage.core.progress import Progress
from collage.errors import ModelError
from collage.serve.decoder.compile import DecoderOptions, compile_parts
from collage.serve.decoder.compiled import IDS, MASK, POSITIONS
from collage.serve.decoder.onnx_graph import PROBE, GraphSizes, read_decoder
from collage.serve.decoder.positions import angles
from collage.serve.decoder.recognise import recognise
from collage.serve.decoder.segments import cut, refuse_mixing
from scripts.lib.decoders.build import decoder
from scripts.lib.decoders.shape import ATTENTION, NAMED, PLAIN, small

GPT2, QWEN2 = small(NAMED["gpt2_124m"], 2), small(NAMED["qwen2_like"], 2)


def insert(model: onnx.ModelProto, before: str, *nodes: onnx.NodeProto) -> None:
    """Put nodes before the one that makes a value, or before all others where none does."""
    places = [place for place, node in enumerate(model.graph.node) if before in node.output]
    for node in nodes[::-1]:
        model.graph.node.insert(places[0] if places else 0, node)


def weight(model: onnx.ModelProto, name: str, value: Any) -> str:
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return name


def softmax(model: onnx.ModelProto, place: int = -1) -> onnx.NodeProto:
    return [node for node in model.graph.node if node.op_type == "Softmax"][place]


def behind_mask(model: onnx.ModelProto, *nodes: onnx.NodeProto) -> None:
    """Put nodes before the last softmax, which make "masked" of "scores"."""
    node = softmax(model)
    for each in nodes:
        each.input[:] = [node.input[0] if name == "scores" else name for name in each.input]
    insert(model, node.output[0], *nodes)
    node.input[0] = "masked"


def padding_by_ids(model: onnx.ModelProto) -> None:
    weight(model, "pad", np.int64(7))
    weight(model, "low", np.float32(-1e9))
    weight(model, "axes", np.array([1, 2]))
    behind_mask(
        model,
        helper.make_node("Equal", [IDS, "pad"], ["is_pad"]),
        helper.make_node("Unsqueeze", ["is_pad", "axes"], ["wide"]),
        helper.make_node("Where", ["wide", "low", "scores"], ["masked"], "hide_pad"),
    )


def test_masks_of_token_ids_are_refused() -> None:
    model = decoder(replace(GPT2, form=PLAIN))
    padding_by_ids(model)
    with pytest.raises(ModelError, match=r"node hide_pad \(\w+\) masks or biases attention by the token ids"):
        recognise(model, "it")


def test_a_mask_of_token_ids_for_the_operator_is_refused() -> None:
    model = decoder(replace(GPT2, form=ATTENTION))
    node = next(each for each in model.graph.node if each.op_type == "Attention")
    insert(model, "", helper.make_node("Cast", [IDS], ["mask"], to=TensorProto.BOOL))
    node.input[3] = "mask"
    with pytest.raises(ModelError, match=r"\(Attention\) masks or biases attention by the token ids"):
        recognise(model, "it")


def long_factor(model: onnx.ModelProto) -> None:
    """Angles are halved where there is a position from 1000 on, as LongRoPE has other factors there."""
    turned = next(node for node in model.graph.node if node.op_type == "Cos").input[0]
    weight(model, "limit", np.int64(999))
    weight(model, "short", np.float32(1.0))
    weight(model, "long", np.float32(0.5))
    insert(
        model,
        "rotary.cos",
        helper.make_node("ReduceMax", [POSITIONS], ["last"], "last", keepdims=0),
        helper.make_node("Greater", ["last", "limit"], ["is_long"]),
        helper.make_node("Where", ["is_long", "long", "short"], ["factor"]),
        helper.make_node("Mul", [turned, "factor"], ["scaled"]),
    )
    for node in model.graph.node:
        if node.op_type in ("Cos", "Sin"):
            node.input[0] = "scaled"


def quiet(progress: Progress) -> None:
    pass


def test_angles_that_depend_on_other_positions_are_refused() -> None:
    model = decoder(QWEN2)
    long_factor(model)
    options = DecoderOptions((8,), quick=True, max_length=1100)
    with pytest.raises(ModelError, match=r"node /rotary/cos \(Cos\) gives angles of a token that depend on the pos"):
        compile_parts(model, options, default_registry(), quiet)


def test_positions_that_are_mixed_in_a_segment_are_refused() -> None:
    model = decoder(GPT2)
    weight(model, "first", np.array([0]))
    table = next(node for node in model.graph.node if POSITIONS in node.input)
    nodes = [
        helper.make_node("Gather", [POSITIONS, "first"], ["some"], "mixing", axis=1),
        helper.make_node("Cast", ["some"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["plain", "number"], [table.output[0]]),
    ]
    place = list(model.graph.node).index(table)
    table.output[0] = "plain"
    for node in nodes[::-1]:
        model.graph.node.insert(place + 1, node)
    found, graph = recognise(model, "it")
    with pytest.raises(ModelError, match=r"node mixing \(Gather\) mixes tokens"):
        refuse_mixing(graph, cut(graph, found), PROBE.tokens)


def slice_to_length(model: onnx.ModelProto, table: str, made: str) -> None:
    """``made`` is as much of a table as the sequence has tokens."""
    for name, number in (("first", 0), ("unit", 1)):
        weight(model, name, np.array([number]))
    insert(
        model,
        "",
        helper.make_node("Shape", [MASK], ["length"], start=1, end=2),
        helper.make_node("Slice", [table, "first", "length", "first", "unit"], ["part"]),
        helper.make_node("Cast", ["part"], [made], to=TensorProto.FLOAT),
    )


def test_a_learned_table_that_is_cut_to_the_sequence() -> None:
    model = decoder(GPT2)
    gather = next(node for node in model.graph.node if POSITIONS in node.input)
    table, gather.input[0] = gather.input[0], "used"
    slice_to_length(model, table, "used")
    found, _ = recognise(model, "it")
    assert found.max_length == 256
    for tokens in (4, 59, 300):  # rows have 64 elements, which are the new tokens and 5 before them, too
        segments = cut(read_decoder(model, GraphSizes(tokens, 5)), found)
        assert table in segments[0].weights
        assert tokens == 300 or not any(node.op_type == "Slice" for node in segments[0].bare.graph.node)


def test_a_table_of_angles_that_is_cut_to_the_sequence() -> None:
    model = decoder(QWEN2)
    wanted = np.cos(np.arange(300)[:, None] * np.tile(10000.0 ** (-np.arange(8) / 8), 2)).astype(np.float32)
    weight(model, "table", wanted)
    slice_to_length(model, "table", "used")
    for node in model.graph.node:
        if "rotary.cos" in node.output:
            node.output[0] = "unused"
    insert(
        model,
        "unused",
        helper.make_node("Gather", ["used", POSITIONS], ["rows"]),
        helper.make_node("Unsqueeze", ["rows", "unit"], ["rotary.cos"]),
    )
    found, graph = recognise(model, "it")
    assert found.max_length == 300
    rotation = found.layers[0].rotation
    assert rotation is not None
    np.testing.assert_array_equal(angles(graph, rotation.cos, 300, PROBE.tokens), wanted)


def wrapped(model: onnx.ModelProto) -> tuple[str, list[onnx.NodeProto]]:
    weight(model, "rows", np.int64(256))
    weight(model, "zero", np.int64(0))
    return "Gather", [
        helper.make_node("Less", [POSITIONS, "zero"], ["below"]),
        helper.make_node("Add", [POSITIONS, "rows"], ["from_end"]),
        helper.make_node("Where", ["below", "from_end", POSITIONS], ["index"]),
    ]


def by_several_axes(model: onnx.ModelProto) -> tuple[str, list[onnx.NodeProto]]:
    weight(model, "behind", np.array([-1]))
    return "GatherND", [helper.make_node("Unsqueeze", [POSITIONS, "behind"], ["index"])]


def halved(model: onnx.ModelProto) -> tuple[str, list[onnx.NodeProto]]:
    """Two positions share a row."""
    weight(model, "two", np.int64(2))
    return "Gather", [helper.make_node("Div", [POSITIONS, "two"], ["index"])]


def clipped(model: onnx.ModelProto) -> tuple[str, list[onnx.NodeProto]]:
    weight(model, "end", np.int64(255))
    return "Gather", [helper.make_node("Min", [POSITIONS, "end"], ["index"])]


@pytest.mark.parametrize(("change", "wanted"), [(wrapped, 256), (by_several_axes, 256), (halved, 512), (clipped, None)])
def test_lookups_that_tell_how_far_positions_go(
    change: Callable[[onnx.ModelProto], tuple[str, list[onnx.NodeProto]]], wanted: int | None
) -> None:
    model = decoder(GPT2)
    gather = next(node for node in model.graph.node if POSITIONS in node.input)
    gather.op_type, nodes = change(model)
    gather.input[1] = "index"
    insert(model, "", *nodes)
    assert recognise(model, "it")[0].max_length == wanted


def test_a_lookup_whose_end_cannot_be_told_is_refused() -> None:
    model = decoder(GPT2)
    gather = next(node for node in model.graph.node if POSITIONS in node.input)
    gather.input[1], gather.name = "index", "lookup"
    weight(model, "one", np.int64(1))
    steps = [POSITIONS, *(f"step{number}" for number in range(30)), "index"]
    insert(
        model,
        "",
        *(helper.make_node("Mul", [one, "one"], [other]) for one, other in pairwise(steps)),
    )
    with pytest.raises(
        ModelError, match=r"node lookup \(Gather\) looks up positions in a table of unknown length.*--max-len"
    ):
        recognise(model, "it")
    assert recognise(model, "it", 200)[0].max_length is None
