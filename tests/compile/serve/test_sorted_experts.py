"""Mixtures whose tokens are put in the order of their experts, as in Granite, and what only looks like one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper

from collage.errors import ModelError
from collage.serve.decoder.experts.rewrite import with_fixed_shapes
from collage.serve.decoder.onnx_graph import PROBE, is_product
from scripts.lib.decoders.build import decoder
from scripts.lib.decoders.shape import ATTENTION
from tests.helpers.serve.mixtures import (
    MOE,
    Change,
    check_same,
    constant,
    exchanged,
    first,
    maker,
    refuse,
    users,
)

SORTING = replace(MOE, form=ATTENTION, sorts=True)


@pytest.mark.parametrize("chosen", [1, 2, 5])
def test_the_same_logits_where_tokens_are_put_in_order(chosen: int) -> None:
    found = check_same(decoder(replace(SORTING, chosen=chosen)))
    kinds = [node.op_type for node in found.graph.node]
    assert not {"Split", "ScatterND"}.intersection(kinds)
    assert kinds.count("Scan") == 2 * MOE.layers


def in_the_other_order(model: onnx.ModelProto) -> None:
    """The last expert's pairs come first, and their numbers do not."""
    (largest,) = (each for each in first(model, "TopK", 1).attribute if each.name == "largest")
    largest.i = 1


def in_the_order_of_others(model: onnx.ModelProto) -> None:
    """Pairs are in the order of other numbers than those of their experts."""
    order = first(model, "TopK", 1)
    order.input[0] = maker(model, order.input[0]).input[0] + ".changed"
    place = list(model.graph.node).index(order)
    flat = maker(model, users(model, "TopK")[0].output[1])
    one = constant(model, np.array(1))
    model.graph.node.insert(place, helper.make_node("Mod", [flat.output[1], one], ["mod"]))
    shape = constant(model, np.array([-1]))
    model.graph.node.insert(place + 1, helper.make_node("Reshape", ["mod", shape], [order.input[0]]))


def with_lengths_of_others(model: onnx.ModelProto) -> None:
    """The first expert is given as many rows as the second one has."""
    exchanged(maker(model, first(model, "Split").input[1]))


def counting_from_one(model: onnx.ModelProto) -> None:
    """Experts that were not chosen count, too."""
    marks = first(model, "ScatterElements")
    maker(model, marks.input[0]).input[0] = constant(model, np.float32(1))


def of_other_tokens(model: onnx.ModelProto) -> None:
    """Rows are those of other tokens than the pairs'."""
    maker(model, first(model, "Floor").input[0]).input[1] = constant(model, np.float32(3))


def with_the_first_factors(model: onnx.ModelProto) -> None:
    """Rows are weighted by the factors at their tokens' numbers, and not at their own."""
    for node in users(model, "Gather"):
        if "TopK" in node.input[1]:
            token = maker(model, first(model, "GatherND").input[1]).input[0]
            node.input[1] = token
            break


def put_in_the_place_of_tokens(model: onnx.ModelProto) -> None:
    """A token's last row replaces it."""
    del first(model, "ScatterND").attribute[:]


@pytest.mark.parametrize(
    "change",
    [
        *(in_the_other_order, in_the_order_of_others, with_lengths_of_others, counting_from_one),
        *(of_other_tokens, with_the_first_factors, put_in_the_place_of_tokens),
    ],
)
def test_what_is_put_in_order_otherwise_is_refused(change: Change) -> None:
    model = decoder(SORTING)
    change(model)
    found = with_fixed_shapes(model, PROBE)
    assert len([node for node in found.graph.node if is_product(node)]) == 2 * (MOE.layers - 1)
    with pytest.raises(ModelError, match=r"node model\.layers\.0/.*a mixture of experts can be served if"):
        refuse(found)


def test_experts_in_order_may_share_matrices_and_have_biases() -> None:
    """What is particular about an expert is read, and not taken from the places of their matrices."""
    model = decoder(SORTING)
    first(model, "Gemm", 1).input[1] = first(model, "Gemm").input[1]
    biases = constant(model, np.random.default_rng(0).standard_normal((5, 256), np.float32))
    for expert, node in enumerate(users(model, "Gemm")[:5]):
        place = constant(model, np.array(expert))
        bias = helper.make_node("Gather", [biases, place], [f"bias {expert}"])
        model.graph.node.insert(list(model.graph.node).index(node), bias)
        node.input.append(f"bias {expert}")
    check_same(model)
