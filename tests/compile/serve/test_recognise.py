"""Decoders are recognised in several forms, cut at attention, and others are refused with the node named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage.errors import ModelError
from collage.serve.decoder.compiled import Decoder
from collage.serve.decoder.onnx_graph import GraphSizes, read_graph
from collage.serve.decoder.positions import angles
from collage.serve.decoder.recognise import recognise
from collage.serve.decoder.segments import cut, model_of, structure
from scripts.lib.decoders.build import decoder
from scripts.lib.decoders.shape import ATTENTION, NAMED, PAST, PLAIN, small

GPT2, QWEN2 = small(NAMED["gpt2_124m"], 3), small(NAMED["qwen2_like"], 3)


@pytest.mark.parametrize("form", [PAST, ATTENTION, PLAIN])
def test_learned_positions(form: str) -> None:
    found, _ = recognise(decoder(replace(GPT2, form=form)), "gpt2")
    assert (found.vocabulary, found.max_length, len(found.layers)) == (256, 256, 3)
    layer = found.layers[1]
    assert (layer.heads, layer.kv_heads, layer.dim, layer.rotation) == (4, 4, 16, None)
    assert layer.scale == pytest.approx(0.25)
    # One product gives q, k and v beside each other, and nothing copies them apart.
    assert layer.q.value == layer.k.value == layer.v.value
    assert [layer.q.offset, layer.k.offset, layer.v.offset] == [0, 64, 128]


@pytest.mark.parametrize("form", [PAST, ATTENTION, PLAIN])
def test_grouped_heads_and_rotary_positions(form: str) -> None:
    found, graph = recognise(decoder(replace(QWEN2, form=form)), "qwen2")
    layer = found.layers[2]
    assert (layer.heads, layer.kv_heads, layer.dim) == (4, 2, 16)
    assert layer.scale == pytest.approx(0.25)
    assert found.max_length is None
    assert layer.rotation is not None and not layer.rotation.interleaved and layer.rotation.elements == 16
    table = angles(graph, layer.rotation.cos, 100, 29)
    want = np.cos(np.arange(100)[:, None] * 10000.0 ** (-np.arange(8) / 8))
    assert table is not None and np.abs(table[:, :8] - want).max() < 1e-5


def test_segments_hold_no_attention_and_layers_are_alike() -> None:
    model = decoder(QWEN2)
    found, _ = recognise(model, "qwen2")
    segments = cut(read_graph(model, GraphSizes(4, 5)), found)
    kinds = [[node.op_type for node in each.bare.graph.node] for each in segments]
    assert len(segments) == 4
    assert not any({"Softmax", "Cos", "Range", "Shape"} & set(each) for each in kinds)
    assert kinds[1] == kinds[2] != kinds[3]
    assert segments[1].reads[0] == found.layers[0].output  # then the residual stream
    assert len(segments[1].reads) == 2
    for each in segments:
        onnx.checker.check_model(model_of(each, 1), full_check=True)
    assert structure(segments[1]) == structure(segments[2]) != structure(segments[3])


def named(model: onnx.ModelProto, kind: str, place: int = 0) -> onnx.NodeProto:
    return [node for node in model.graph.node if node.op_type == kind][place]


def without_softmax(model: onnx.ModelProto) -> str:
    for node in model.graph.node:
        if node.op_type == "Softmax":
            node.op_type = "Sigmoid"
            del node.attribute[:]
    return "no attention is found"


def looks_at_others(model: onnx.ModelProto) -> str:
    """The largest key of all tokens, outside of attention."""
    node = named(model, "Sigmoid")
    cache = "past_key_values.0.key"
    place = list(model.graph.node).index(node)
    model.graph.node.insert(place, helper.make_node("Mul", [node.input[0], "weight"], ["masked"], "mixing"))
    model.graph.node.insert(place, helper.make_node("ReduceMax", [cache], ["weight"], "most", keepdims=0))
    named(model, "Sigmoid").input[0] = "masked"
    return "node mixing (Mul) reads node most (ReduceMax) outside of attention"


def other_input(model: onnx.ModelProto) -> str:
    model.graph.input.append(helper.make_tensor_value_info("encoder_hidden", TensorProto.FLOAT, [1, 7, 64]))
    return "input encoder_hidden is none of"


def unused_cache(model: onnx.ModelProto) -> str:
    model.graph.input.append(
        helper.make_tensor_value_info("past_key_values.9.key", TensorProto.FLOAT, [1, 2, "past", 16])
    )
    return "cache past_key_values.9.key is not that of one attention"


def branch(model: onnx.ModelProto) -> str:
    inner = helper.make_graph([], "none", [], [helper.make_tensor_value_info("rotary.cos", TensorProto.FLOAT, None)])
    node = helper.make_node("If", ["flag"], ["unused"], "cache_branch", then_branch=inner, else_branch=inner)
    model.graph.node.append(node)
    return "node cache_branch (If) has a graph of its own"


def of_no_dtype(model: onnx.ModelProto) -> str:
    """A cast to a dtype that there is not, of which onnx raises another error than of what it does not know."""
    model.graph.node[-1].output[0] = "uncast"
    model.graph.node.append(helper.make_node("Cast", ["uncast"], ["logits"], to=0))
    return "its first output logits is of unknown shape"


def test_layers_with_scales_of_their_own() -> None:
    model = decoder(QWEN2)
    first, second, *_ = (layer.scale for layer in read_and_cut(model).layers)
    scores = [each for each in model.graph.node if each.op_type == "Softmax"][1]
    place = list(model.graph.node).index(scores)
    model.graph.initializer.append(numpy_helper.from_array(np.float32(3.0), "three"))
    model.graph.node.insert(place, helper.make_node("Mul", [scores.input[0], "three"], ["thrice"], "tripled"))
    named(model, "Softmax", 1).input[0] = "thrice"
    found = [layer.scale for layer in read_and_cut(model).layers]
    assert found[:2] == [pytest.approx(first), pytest.approx(3 * second)]


@pytest.mark.parametrize(
    "spoil",
    [
        without_softmax,
        looks_at_others,
        other_input,
        unused_cache,
        branch,
        of_no_dtype,
    ],
)
def test_others_are_refused(spoil: Callable[[onnx.ModelProto], str]) -> None:
    model = decoder(QWEN2)
    message = spoil(model)
    with pytest.raises(ModelError) as caught:
        read_and_cut(model)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def read_and_cut(model: onnx.ModelProto) -> Decoder:
    found, _ = recognise(model, "it")
    cut(read_graph(model, GraphSizes(4, 5)), found)
    return found


def test_an_encoder_is_refused() -> None:
    model = decoder(replace(GPT2, form=PLAIN))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("pooled", TensorProto.FLOAT, [1, 64]))
    model.graph.node.append(helper.make_node("ReduceMean", ["logits"], ["pooled"], "pool", axes=[1], keepdims=0))
    with pytest.raises(ModelError, match="must be logits"):
        recognise(model, "it")
