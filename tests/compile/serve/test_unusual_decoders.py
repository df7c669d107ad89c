"""Decoders as other exporters write them: served as they are meant, or refused for the right reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage.errors import ModelError
from collage.serve.decoder.check import OriginalDecoder
from collage.serve.decoder.compiled import IDS, POSITIONS, Decoder
from collage.serve.decoder.costs import iteration_of
from collage.serve.decoder.onnx_graph import PROBE, GraphSizes, OnnxGraph, read_graph
from collage.serve.decoder.positions import attention_of, tables_of_angles
from collage.serve.decoder.recognise import recognise
from collage.serve.decoder.segments import Segment, cut, refuse_mixing
from scripts.lib.decoders.build import decoder
from scripts.lib.decoders.shape import NAMED, PLAIN, small
from tests.helpers.models import make_model

GPT2, QWEN2 = small(NAMED["gpt2_124m"], 2), small(NAMED["qwen2_like"], 2)


def insert(model: onnx.ModelProto, *nodes: onnx.NodeProto) -> None:
    """Put nodes before all others."""
    for node in nodes[::-1]:
        model.graph.node.insert(0, node)


def rename(model: onnx.ModelProto, name: str, other: str, last: int = 0) -> None:
    """Let nodes read another value; only the ``last`` ones of those that read it, where that is given."""
    users = [(node, place) for node in model.graph.node for place, each in enumerate(node.input) if each == name]
    for node, place in users[-last:]:
        node.input[place] = other


def add_weight(model: onnx.ModelProto, name: str, value: Any) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))


def test_a_cache_in_float16_is_refused() -> None:
    model = decoder(GPT2)
    model.graph.input[-1].type.tensor_type.elem_type = TensorProto.FLOAT16
    with pytest.raises(ModelError, match=r"its input past_key_values.1.value is float16, and must be float32\."):
        recognise(model, "it")


def test_token_ids_in_int32() -> None:
    model = decoder(GPT2)
    wanted = OriginalDecoder(model, 1).logits([3, 1, 4, 1, 5])
    for info in model.graph.input:
        if info.name in (IDS, POSITIONS):
            info.type.tensor_type.elem_type = TensorProto.INT32
    assert recognise(model, "it")[0].max_length == 256
    np.testing.assert_array_equal(OriginalDecoder(model, 1).logits([3, 1, 4, 1, 5]), wanted)


@pytest.mark.parametrize("requests", [1, 64])
def test_iterations_are_timed_where_sequences_are_shorter_than_the_largest_bucket(requests: int) -> None:
    runner = cast(Any, SimpleNamespace(max_length=20, block_count=16, vocabulary=50))
    slices = iteration_of(runner, 70, requests)
    assert sum(len(each.token_ids) for each in slices) == 70
    assert all(len(each.token_ids) >= 1 and each.start + len(each.token_ids) <= 20 for each in slices)


def from_two(model: onnx.ModelProto) -> None:
    """Positions begin at 2, and something else adds more to them."""
    for name, number in (("two", 2), ("many", 4096)):
        add_weight(model, name, np.int64(number))
    rename(model, POSITIONS, "shifted")
    insert(
        model,
        helper.make_node("Add", [POSITIONS, "two"], ["shifted"]),
        helper.make_node("Add", [POSITIONS, "many"], ["unused"]),
    )


def test_how_far_a_table_of_positions_goes() -> None:
    model = decoder(GPT2)
    from_two(model)
    assert recognise(model, "it")[0].max_length == 254


def own_angles(model: onnx.ModelProto, factor: float, last: int) -> None:
    """The last uses of cos and sin are of values of their own, whose angles are ``factor`` times as large."""
    add_weight(model, "factor", np.float32(factor))
    nodes = list(model.graph.node)
    at = next(place for place, node in enumerate(nodes) if node.op_type == "Cos")
    angles = nodes[at].input[0]
    for kind in ("Cos", "Sin"):
        rename(model, f"rotary.{kind.lower()}", f"own.{kind.lower()}", last)
        model.graph.node.insert(at, helper.make_node(kind, ["own.angles"], [f"own.{kind.lower()}"]))
    model.graph.node.insert(at, helper.make_node("Mul", [angles, "factor"], ["own.angles"]))


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_layers_with_angles_of_their_own(factor: float) -> None:
    """Layers share a table where their angles are the same."""
    model = decoder(QWEN2)
    own_angles(model, factor, 2)
    found, graph = recognise(model, "it")
    tables = tables_of_angles(graph, found, 100, "it")
    assert (tables[0] is tables[1]) == (factor == 1)
    assert np.array_equal(tables[0].cos, tables[1].cos) == (factor == 1)


def test_q_and_k_with_different_angles_are_refused() -> None:
    model = decoder(QWEN2)
    own_angles(model, 1.0, 1)
    recognise(model, "it")
    model = decoder(QWEN2)
    own_angles(model, 1.5, 1)
    with pytest.raises(ModelError, match=r"layers.1.*has q and k with different rotary positions"):
        recognise(model, "it")


def counted(model: onnx.ModelProto, cached: bool, dtype: int = TensorProto.INT64) -> None:
    """Positions are counted in the graph: a range of the new tokens, to which the number of those before is added."""
    (given,) = (each for each in model.graph.input if each.name == POSITIONS)
    model.graph.input.remove(given)
    for name, number in (("zero", 0), ("one", 1)):
        add_weight(model, name, np.int64(number))
    add_weight(model, "first", np.array([0]))
    cache = [each.name for each in model.graph.input if each.name.startswith("past")]
    nodes = [
        helper.make_node("Shape", [IDS], ["count"], start=1, end=2),
        helper.make_node("Squeeze", ["count"], ["tokens"]),
        helper.make_node("Range", ["zero", "tokens", "one"], ["new"]),
    ]
    if cached:
        nodes += [
            helper.make_node("Shape", [cache[0]], ["length"], start=2, end=3),
            helper.make_node("Add", ["new", "length"], ["at"]),
        ]
    last = nodes[-1].output[0]
    if dtype != TensorProto.INT64:
        nodes += [helper.make_node("Cast", [last], ["typed"], to=dtype)]
        last = "typed"
    insert(model, *nodes, helper.make_node("Unsqueeze", [last, "first"], ["counted"]))
    rename(model, POSITIONS, "counted")


@pytest.mark.parametrize(
    ("cached", "dtype"), [(True, TensorProto.INT64), (False, TensorProto.INT64), (True, TensorProto.INT32)]
)
def test_positions_that_the_graph_counts(cached: bool, dtype: int) -> None:
    """Each row of the first segment has its token's position, and the table of positions ends where it did."""
    shape = GPT2 if cached else replace(GPT2, form=PLAIN)
    model = decoder(shape)
    wanted = [first_rows(model, sizes, places) for sizes, places in ROWS]
    counted(model, cached, dtype)
    found, graph = recognise(model, "it")
    assert found.max_length == 256 and graph.places
    for (sizes, places), rows in zip(ROWS, wanted, strict=True):
        np.testing.assert_array_equal(first_rows(model, sizes, places), rows)


ROWS = [(1, [200]), (4, [7, 3, 3, 250])]
"""Numbers of tokens, and positions of them."""


def first_rows(model: onnx.ModelProto, tokens: int, places: list[int]) -> Any:
    """What the first segment computes for a token at each of the places."""
    segments, _, _ = read_and_cut(model, tokens)
    first = onnx.ModelProto()
    first.CopyFrom(segments[0].bare)
    first.graph.initializer.extend(segments[0].weights.values())
    session = onnxruntime.InferenceSession(first.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {IDS: np.full((1, tokens), 5), POSITIONS: np.array([places])}
    return session.run(None, {each.name: feeds[each.name] for each in session.get_inputs()})[0]


def read_and_cut(model: onnx.ModelProto, tokens: int) -> tuple[list[Segment], OnnxGraph, Decoder]:
    found, graph = recognise(model, "it")
    sized = graph if tokens == PROBE.tokens else read_graph(model, GraphSizes(tokens, PROBE.past), graph.places)
    return cut(sized, found), sized, found


def largest_of_all(value: str) -> list[onnx.NodeProto]:
    return [
        helper.make_node("ReduceMax", [value], ["most"], "mixing", axes=[1]),
        helper.make_node("Add", [value, "most"], ["mixed"]),
    ]


def quantised(value: str) -> list[onnx.NodeProto]:
    return [
        helper.make_node("DynamicQuantizeLinear", [value], ["whole", "scale", "zero"], "mixing"),
        helper.make_node("DequantizeLinear", ["whole", "scale", "zero"], ["mixed"]),
    ]


def each_alone(value: str) -> list[onnx.NodeProto]:
    """Along the elements of a token."""
    return [
        helper.make_node("LogSoftmax", [value], ["soft"], axis=-1),
        helper.make_node("ReduceMax", ["soft"], ["most"], axes=[-1]),
        helper.make_node("Add", ["soft", "most"], ["mixed"]),
    ]


@pytest.mark.parametrize("change", [largest_of_all, quantised, each_alone])
def test_operators_that_mix_tokens_are_refused(change: Callable[[str], list[onnx.NodeProto]]) -> None:
    model = decoder(QWEN2)
    (node,) = [each for each in model.graph.node if each.op_type == "Sigmoid"][-1:]
    place = list(model.graph.node).index(node)
    value = node.input[0]
    for each in change(value)[::-1]:
        model.graph.node.insert(place, each)
    [each for each in model.graph.node if each.op_type == "Sigmoid"][-1].input[0] = "mixed"
    segments, graph, _ = read_and_cut(model, PROBE.tokens)
    if change is each_alone:
        refuse_mixing(graph, segments, PROBE.tokens)
        return
    with pytest.raises(ModelError, match=r"node mixing \(\w+\) mixes tokens outside of attention"):
        refuse_mixing(graph, segments, PROBE.tokens)


def test_positions_that_are_counted_by_the_mask() -> None:
    """As OPT does: the sum of the mask so far, behind the tokens of the cache."""
    model = decoder(GPT2)
    wanted = OriginalDecoder(model, 1).logits([3, 1, 4, 1, 5])
    (given,) = (each for each in model.graph.input if each.name == POSITIONS)
    model.graph.input.remove(given)
    for name, number in (("axis", 1), ("one", 1)):
        add_weight(model, name, np.int64(number))
    for name, number in (("columns", 1), ("end", 1 << 60), ("past_axis", 2)):
        add_weight(model, name, np.array([number]))
    insert(
        model,
        helper.make_node("Cast", ["attention_mask"], ["whole_mask"], to=TensorProto.INT64),
        helper.make_node("CumSum", ["whole_mask", "axis"], ["counts"]),
        helper.make_node("Sub", ["counts", "one"], ["all_places"]),
        helper.make_node("Shape", ["past_key_values.0.key"], ["past"], start=2, end=3),
        helper.make_node("Slice", ["all_places", "past", "end", "columns"], [POSITIONS]),
    )
    found, graph = recognise(model, "it")
    assert found.max_length == 256 and POSITIONS in graph.places
    np.testing.assert_array_equal(OriginalDecoder(model, 1).logits([3, 1, 4, 1, 5]), wanted)


def with_rotary_operator(interleaved: int) -> onnx.ModelProto:
    """One layer with ONNX's RotaryEmbedding and Attention, and a router's softmax over experts."""
    sizes = {"e": (50, 32), "q": (32, 32), "k": (32, 16), "v": (32, 16), "h": (32, 50), "r": (32, 6)}
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in sizes.items()}
    weights["table"] = rng.uniform(0, 6, (70, 4)).astype(np.float32)
    turn = {"interleaved": interleaved}
    nodes = [
        helper.make_node("Gather", ["e", IDS], ["x"]),
        helper.make_node("Gather", ["table", POSITIONS], ["angles"]),
        helper.make_node("Cos", ["angles"], ["cos"]),
        helper.make_node("Sin", ["angles"], ["sin"]),
        *(helper.make_node("MatMul", ["x", name], [f"{name}x"]) for name in "qkvr"),
        helper.make_node("RotaryEmbedding", ["qx", "cos", "sin"], ["qr"], num_heads=4, **turn),
        helper.make_node("RotaryEmbedding", ["kx", "cos", "sin"], ["kr"], num_heads=2, **turn),
        helper.make_node("Attention", ["qr", "kr", "vx"], ["a"], "att", is_causal=1, q_num_heads=4, kv_num_heads=2),
        helper.make_node("Softmax", ["rx"], ["shares"]),
        helper.make_node("ArgMax", ["shares"], ["best"], axis=-1),
        helper.make_node("Cast", ["best"], ["weight"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["a", "weight"], ["mixed"]),
        helper.make_node("MatMul", ["mixed", "h"], ["logits"]),
    ]
    types = {IDS: TensorProto.INT64, POSITIONS: TensorProto.INT64, "logits": TensorProto.FLOAT}
    shapes = {IDS: ["b", "s"], POSITIONS: ["b", "s"]}
    return make_model(nodes, shapes, {"logits": ["b", "s", 50]}, weights, opset=23, types=types)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotations_by_the_operator(interleaved: int) -> None:
    model = with_rotary_operator(interleaved)
    found, graph = recognise(model, "it")
    (layer,) = found.layers
    assert layer.rotation is not None and layer.q.value == "qx" and layer.k.value == "kx"
    (table,) = tables_of_angles(graph, found, 70, "it")
    attention = attention_of(layer, table)
    assert (attention.heads.rotary, attention.heads.interleaved) == (8, bool(interleaved))
    angles = next(each for each in model.graph.initializer if each.name == "table")
    np.testing.assert_allclose(table.cos, np.cos(numpy_helper.to_array(angles)), atol=1e-6)
    np.testing.assert_allclose(table.sin, np.sin(numpy_helper.to_array(angles)), atol=1e-6)


def test_the_attention_mask_is_no_table_of_positions() -> None:
    """PyTorch looks the mask up at the places of keys."""
    model = decoder(replace(QWEN2, form=PLAIN))
    model.graph.input.append(helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["b", "s"]))
    add_weight(model, "rows", np.array([-1]))
    softmax = next(node for node in model.graph.node if node.op_type == "Softmax")
    insert(
        model,
        helper.make_node("Reshape", ["attention_mask", "rows"], ["flat"]),
        helper.make_node("Gather", ["flat", POSITIONS], ["seen"], axis=0),
        helper.make_node("Cast", ["seen"], ["seen.float"], to=TensorProto.FLOAT),
        helper.make_node("Log", ["seen.float"], ["bias"]),
    )
    place = list(model.graph.node).index(softmax)
    model.graph.node.insert(place, helper.make_node("Add", [softmax.input[0], "bias"], ["masked"]))
    model.graph.node[place + 1].input[0] = "masked"
    found, graph = recognise(model, "it")
    assert graph.shapes["seen"] == (1, PROBE.tokens)
    assert found.max_length is None


def test_keys_that_are_gathered_behind_axes_of_one_element() -> None:
    """As PyTorch exports the heads of a Falcon, which lie beside each other in one product."""
    model = decoder(QWEN2)
    wanted, _ = recognise(decoder(QWEN2), "it")
    key = wanted.layers[0].k.value
    (made,) = (place for place, node in enumerate(model.graph.node) if key in node.output)
    for name, value in (("heads", [0, 0, 2, -1]), ("flat", [0, 0, -1]), ("outer_axis", [0]), ("only", [[0]])):
        add_weight(model, name, np.array(value))
    rename(model, key, "inner")
    nodes = [
        helper.make_node("Reshape", [key, "heads"], ["by_head"]),
        helper.make_node("Unsqueeze", ["by_head", "outer_axis"], ["outer"]),
        helper.make_node("GatherND", ["outer", "only"], ["gathered"]),
        helper.make_node("Squeeze", ["gathered", "outer_axis"], ["by_head_again"]),
        helper.make_node("Reshape", ["by_head_again", "flat"], ["inner"]),
    ]
    for number, node in enumerate(nodes):
        model.graph.node.insert(made + 1 + number, node)
    found, graph = recognise(model, "it")
    assert graph.shapes["gathered"][:4] == (1, 1, PROBE.tokens, 2)
    assert found.layers[0].k == replace(wanted.layers[0].k, value="gathered")
    refuse_mixing(graph, cut(graph, found), PROBE.tokens)


def with_repeated_heads(axis: int) -> onnx.ModelProto:
    """K/V heads are repeated by ``Tile``, each by itself (axis 2 of five), or all of them in turn (axis 1)."""
    model = decoder(QWEN2)
    for node in model.graph.node:
        if node.op_type == "Expand":
            repeats = [1] * 5
            repeats[axis] = 2
            add_weight(model, f"{node.name} repeats", np.array(repeats))
            node.op_type = "Tile"
            node.input[1] = f"{node.name} repeats"
    return model


def test_heads_that_are_repeated_by_tiles() -> None:
    """So torch's older exporter writes ``repeat_interleave``."""
    described, _ = recognise(with_repeated_heads(2), "it")
    assert described.layers[0].kv_heads == 2
    assert described == recognise(decoder(QWEN2), "it")[0]
    # In another order, the heads of q that share one of k are no neighbours.
    with pytest.raises(ModelError, match=r"Tile.* and node .* attends to it: this is no form of attention"):
        recognise(with_repeated_heads(1), "it")
