"""Decoders as exporters and converters leave them: with a branch for the cache, and with nodes in any order."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from collage.api import default_registry
from collage.errors import ModelError
from collage.serve.decoder.build import compile_decoder
from collage.serve.decoder.check import OriginalDecoder
from collage.serve.decoder.compile import DecoderOptions
from collage.serve.decoder.normal_form import in_normal_form
from collage.serve.decoder.recognise import recognise
from scripts.lib.decoders.build import decoder
from scripts.lib.decoders.shape import NAMED, small

QWEN2 = small(NAMED["qwen2_like"], 2)
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]


def normal(model: onnx.ModelProto) -> onnx.ModelProto:
    found = in_normal_form(model)
    assert isinstance(found, onnx.ModelProto)
    return found


def merged(inside: bool) -> onnx.ModelProto:
    """A decoder whose layers are in both branches of an If, as optimum's merged ones, with an unused one outside."""
    model = decoder(QWEN2)
    nodes, outputs = list(model.graph.node), list(model.graph.output)
    branches = [helper.make_graph(nodes, name, [], outputs) for name in ("with_past", "without")]
    if inside:
        branches[0].initializer.extend(model.graph.initializer)
        branches[1].initializer.extend(model.graph.initializer)
        del model.graph.initializer[:]
    del model.graph.node[:], model.graph.output[:]
    names = [f"merged.{info.name}" for info in outputs]
    choice = helper.make_node(
        "If", ["use_cache_branch"], names, "choice", then_branch=branches[0], else_branch=branches[1]
    )
    model.graph.node.append(choice)
    for name, info in zip(names, outputs, strict=True):
        made = model.graph.output.add()
        made.CopyFrom(info)
        made.name = name
    model.graph.input.append(helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1]))
    return model


@pytest.mark.parametrize("inside", [False, True], ids=["weights outside", "weights inside"])
def test_the_branch_with_a_cache_is_taken(inside: bool) -> None:
    found = normal(merged(inside))
    wanted = OriginalDecoder(decoder(QWEN2), 1).logits(TOKENS)
    np.testing.assert_array_equal(OriginalDecoder(found, 1).logits(TOKENS), wanted)
    layers = recognise(found, "it")[0].layers
    assert [(layer.heads, layer.kv_heads) for layer in layers] == [(4, 2)] * 2


def test_another_use_of_the_branch_is_refused() -> None:
    model = merged(False)
    model.graph.node.append(helper.make_node("Not", ["use_cache_branch"], ["other"]))
    assert in_normal_form(model) is model
    with pytest.raises(ModelError, match="its input use_cache_branch is none of"):
        recognise(model, "it")


def test_nodes_in_any_order() -> None:
    model = decoder(QWEN2)
    wanted = OriginalDecoder(model, 1).logits(TOKENS)
    order = np.random.default_rng(0).permutation(len(model.graph.node)).tolist()
    nodes = [model.graph.node[place] for place in order]
    mixed = onnx.ModelProto()
    mixed.CopyFrom(model)
    del mixed.graph.node[:]
    mixed.graph.node.extend(nodes)
    found = normal(mixed)
    onnx.checker.check_model(found)
    np.testing.assert_array_equal(OriginalDecoder(found, 1).logits(TOKENS), wanted)
    assert len(recognise(found, "it")[0].layers) == 2


def test_the_largest_elements_are_sorted() -> None:
    """DeepSeek-V3's choice of experts leaves their order open, and kernels sort."""
    model = decoder(small(NAMED["moe_like"], 2))
    wanted = OriginalDecoder(model, 1).logits(TOKENS)
    choices = [node for node in model.graph.node if node.op_type == "TopK"]
    for node in choices:
        node.attribute.append(helper.make_attribute("sorted", 0))
    found = [node for node in normal(model).graph.node if node.op_type == "TopK"]
    assert len(found) == len(choices) == 2
    assert all(each.i == 1 for node in found for each in node.attribute if each.name == "sorted")
    np.testing.assert_allclose(OriginalDecoder(normal(model), 1).logits(TOKENS), wanted, rtol=0, atol=1e-4)


def test_a_decoder_in_normal_form_stays_as_it_is() -> None:
    model = decoder(QWEN2)
    assert in_normal_form(model) is model
    data = model.SerializeToString()
    assert in_normal_form(data) is data


def test_bfloat16_becomes_float32() -> None:
    model = decoder(QWEN2)
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            values = np.clip(onnx.numpy_helper.to_array(tensor), -3e38, 3e38)
            dims = list(values.shape)
            tensor.CopyFrom(helper.make_tensor(tensor.name, TensorProto.BFLOAT16, dims, values.reshape(-1)))
    for info in (*model.graph.input, *model.graph.output):
        if info.type.tensor_type.elem_type == TensorProto.FLOAT:
            info.type.tensor_type.elem_type = TensorProto.BFLOAT16
    found = normal(model)
    wanted = OriginalDecoder(decoder(QWEN2), 1).logits(TOKENS)
    error = np.abs(OriginalDecoder(found, 1).logits(TOKENS) - wanted).max()
    assert 0 < error < 0.05 * np.abs(wanted).max()  # weights were rounded, and nothing else is


def test_operators_that_onnx_does_not_have_are_named() -> None:
    """As the builder of ONNX Runtime GenAI writes them."""
    model = decoder(QWEN2)
    for kind, name in (("GroupQueryAttention", "/attn"), ("MatMulNBits", "/q")):
        model.graph.node.append(helper.make_node(kind, ["logits"], [name], name, domain="com.microsoft"))
    with pytest.raises(ModelError) as caught:
        compile_decoder(model, DecoderOptions((8,)), default_registry(), lambda progress: None)
    text = str(caught.value)
    assert "node /attn (com.microsoft.GroupQueryAttention)" in text and "com.microsoft.MatMulNBits" in text
    assert "optimum-onnx and torch.onnx" in text and "\n" not in text
