"""Mixtures of experts: loops over experts become products that choose their matrix, and give the same tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from collage.api import default_registry
from collage.errors import ModelError
from collage.serve import Engine, EngineOptions, Sampling
from collage.serve.decoder.build import compile_decoder, compile_divided
from collage.serve.decoder.check import OriginalDecoder
from collage.serve.decoder.compile import DecoderOptions
from collage.serve.decoder.compiled import CompiledDecoder
from collage.serve.decoder.experts.rewrite import with_fixed_shapes
from collage.serve.decoder.onnx_graph import PROBE, is_product
from collage.serve.decoder.runner import DecoderRunner
from scripts.lib.decoders.build import decoder
from scripts.lib.decoders.shape import ATTENTION, PAST, PLAIN
from tests.helpers.serve.mixtures import (
    MOE,
    Change,
    check_same,
    constant,
    maker,
    refuse,
    users,
)

FORMS = [PAST, ATTENTION, PLAIN]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("chosen", [1, 2, 5])
def test_the_same_logits(form: str, chosen: int) -> None:
    found = check_same(decoder(replace(MOE, form=form, chosen=chosen)))
    kinds = [node.op_type for node in found.graph.node]
    assert not {"NonZero", "ScatterElements", "ScatterND"}.intersection(kinds)
    assert kinds.count("Scan") == (2 if form == PLAIN else 3) * MOE.layers


def with_biases(model: onnx.ModelProto) -> None:
    """Experts' products have biases, by ``Gemm`` with transposed weights."""
    tensors = {each.name: each for each in model.graph.initializer}
    for node in users(model, "MatMul"):
        if "mlp.experts" in node.input[1]:
            tensor = tensors[node.input[1]]
            matrix = numpy_helper.to_array(tensor)
            bias = np.random.default_rng(len(node.input[1])).standard_normal(matrix.shape[1], np.float32)
            tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(matrix.T), tensor.name))
            model.graph.initializer.append(numpy_helper.from_array(bias, f"{tensor.name}.bias"))
            node.op_type = "Gemm"
            node.attribute.append(helper.make_attribute("transB", 1))
            node.input.append(f"{tensor.name}.bias")


def on_top_of_another_value(model: onnx.ModelProto) -> None:
    """The sum over experts does not begin with zeros, but with the tokens themselves."""
    makers = {name: node for node in model.graph.node for name in node.output}
    for added in users(model, "ScatterND"):
        before = makers[added.input[0]]
        if before.op_type == "Expand":
            added.input[0] = makers[before.input[1]].input[0]


@pytest.mark.parametrize("change", [with_biases, on_top_of_another_value])
def test_other_experts(change: Change) -> None:
    model = decoder(replace(MOE, form=ATTENTION))
    change(model)
    check_same(model)


def with_factors_in_one_axis(model: onnx.ModelProto) -> None:
    """The factors of an expert's rows are brought into one axis first, as DeepSeek-V3's are."""
    makers = {name: node for node in model.graph.node for name in node.output}
    for name, value in (("all", [-1]), ("last", [1])):
        model.graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    for node in users(model, "Reshape"):
        gathered = makers.get(node.input[0])
        if gathered is not None and gathered.op_type == "Gather" and "Add" in gathered.input[1]:
            flat, place = f"{node.name}/flat", list(model.graph.node).index(node)
            model.graph.node.insert(place, helper.make_node("Reshape", [node.input[0], "all"], [flat]))
            node.op_type, node.input[:] = "Unsqueeze", [flat, "last"]


def with_groups(model: onnx.ModelProto) -> None:
    """Tokens choose two of three groups of two experts first, and experts of these, as in DeepSeek-V3."""
    for name, value in (
        ("groups", [-1, 3, 2]),
        ("one", [1]),
        ("two", [2]),
        ("whole", [-1, 6]),
        ("last", [-1]),
    ):
        model.graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    for name, value in (("pair", np.ones((1, 1, 2), np.float32)), ("none", np.float32(0))):
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    for router in users(model, "TopK"):
        scores, tag = router.input[0], router.name
        made = [
            helper.make_node("Reshape", [scores, "groups"], [f"{tag}/grouped"]),
            helper.make_node("TopK", [f"{tag}/grouped", "two"], [f"{tag}/best", f"{tag}/places"]),
            helper.make_node("ReduceSum", [f"{tag}/best", "last"], [f"{tag}/sums"], keepdims=0),
            helper.make_node("TopK", [f"{tag}/sums", "two"], [f"{tag}/most", f"{tag}/chosen"]),
            helper.make_node("Mul", [f"{tag}/sums", "none"], [f"{tag}/zeros"]),
            helper.make_node("Mul", [f"{tag}/most", "none"], [f"{tag}/more zeros"]),
            helper.make_node("Exp", [f"{tag}/more zeros"], [f"{tag}/ones"]),
            helper.make_node(
                "ScatterElements", [f"{tag}/zeros", f"{tag}/chosen", f"{tag}/ones"], [f"{tag}/set"], axis=1
            ),
            helper.make_node("Unsqueeze", [f"{tag}/set", "last"], [f"{tag}/column"]),
            helper.make_node("Mul", [f"{tag}/column", "pair"], [f"{tag}/each"]),
            helper.make_node("Reshape", [f"{tag}/each", "whole"], [f"{tag}/mask"]),
            helper.make_node("Cast", [f"{tag}/mask"], [f"{tag}/kept"], to=onnx.TensorProto.BOOL),
            helper.make_node("Where", [f"{tag}/kept", scores, "none"], [f"{tag}/scores"]),
        ]
        place = list(model.graph.node).index(router)
        for node in made[::-1]:
            model.graph.node.insert(place, node)
        router.input[0] = f"{tag}/scores"


@pytest.mark.parametrize("change", [with_factors_in_one_axis, with_groups])
def test_the_experts_of_deepseek(change: Change) -> None:
    model = decoder(replace(MOE, form=PAST, experts=6))
    change(model)
    found = check_same(model)
    assert "NonZero" not in {node.op_type for node in found.graph.node}
    refuse(with_fixed_shapes(model, PROBE))


def one_of_another_kind(model: onnx.ModelProto) -> None:
    """One expert has another activation than the others."""
    users(model, "Sigmoid")[0].op_type = "Tanh"


def left_out(model: onnx.ModelProto) -> None:
    """The first expert's rows are added nowhere."""
    first, second = users(model, "ScatterND")[:2]
    second.input[0] = first.input[0]


def twice(model: onnx.ModelProto) -> None:
    """The first expert's rows are added a second time, where the last one's should be."""
    added = users(model, "ScatterND")
    added[MOE.experts - 1].input[1:] = added[0].input[1:]


def with_factors_of_others(model: onnx.ModelProto) -> None:
    """One expert's rows have other factors than those of the choice."""
    factors = [each for each in users(model, "GatherND") if "Unsqueeze" in each.input[0]]
    model.graph.initializer.append(numpy_helper.from_array(np.ones((29, 2, 1), np.float32), "ones"))
    factors[1].input[0] = "ones"


@pytest.mark.parametrize("change", [one_of_another_kind, left_out, twice, with_factors_of_others])
def test_what_is_no_mixture_of_equal_experts_is_refused(change: Change) -> None:
    model = decoder(replace(MOE, form=ATTENTION))
    change(model)
    found = with_fixed_shapes(model, PROBE)
    assert len([node for node in found.graph.node if is_product(node)]) == 3 * (MOE.layers - 1)
    with pytest.raises(ModelError, match=r"node /?model\.layers\.0/NonZero.* makes as many rows as the tokens say"):
        refuse(found)


@pytest.mark.parametrize("form", [PAST, ATTENTION])
def test_experts_that_can_be_chosen_and_compute_nothing_are_refused(form: str) -> None:
    """The router of the first layer has a score more than there are experts."""
    model = decoder(replace(MOE, form=form))
    (router,) = (each for each in model.graph.initializer if each.name == "model.layers.0.mlp.gate")
    scores = np.random.default_rng(0).standard_normal((MOE.width, MOE.experts + 1), np.float32)
    router.CopyFrom(numpy_helper.from_array(scores, router.name))
    found = with_fixed_shapes(model, PROBE)
    assert len([node for node in found.graph.node if is_product(node)]) == 3 * (MOE.layers - 1)
    with pytest.raises(ModelError, match="a mixture of experts can be served if"):
        refuse(found)


def with_those_that_were_chosen(model: onnx.ModelProto) -> None:
    """The loop goes through the experts that tokens have chosen, as many as there were while it was exported."""
    for node in users(model, "Transpose"):
        if "OneHot" in node.input[0]:
            mask = node.output[0]
            break
    found = [
        helper.make_node("ReduceSum", [mask, constant(model, np.array([-1, -2]))], ["hits"], keepdims=0),
        helper.make_node("Greater", ["hits", constant(model, np.array(0))], ["hit"]),
        helper.make_node("NonZero", ["hit"], ["experts"]),
        helper.make_node("Transpose", ["experts"], ["column"], perm=[1, 0]),
        helper.make_node("Split", ["column", constant(model, np.ones(5, np.int64))], list("abcde")),
        *(
            helper.make_node("Squeeze", [each, constant(model, np.array([0, 1]))], [f"expert {each}"])
            for each in "abcde"
        ),
    ]
    place = list(model.graph.node).index(maker(model, mask)) + 1
    looked_up = [each for each in users(model, "Gather") if each.input[0] == mask]
    for expert, node in zip("abcde", looked_up, strict=True):
        node.input[1] = f"expert {expert}"
    for node in reversed(found):
        model.graph.node.insert(place, node)


def test_a_loop_over_those_that_were_chosen_is_refused() -> None:
    """Its file is wrong for other tokens, and the message tells why, and not what else is odd about it."""
    model = decoder(MOE)
    with_those_that_were_chosen(model)
    with pytest.raises(ModelError, match="only the experts that were chosen while it was exported"):
        with_fixed_shapes(model, PROBE)


def with_scores_of_all(model: onnx.ModelProto) -> None:
    """The scores of experts that were not chosen are no zeros."""
    (first, *_) = users(model, "ScatterElements")
    model.graph.initializer.append(numpy_helper.from_array(np.ones((29, 5), np.float32), "ones"))
    first.input[0] = "ones"


def repeated_one_by_one(model: onnx.ModelProto) -> None:
    """Each token is repeated for itself, and not all of them together."""
    (first, *_) = users(model, "Tile")
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 5, 1]), "each"))
    model.graph.initializer.append(numpy_helper.from_array(np.array([1]), "second axis"))
    place = list(model.graph.node).index(first)
    apart = helper.make_node("Unsqueeze", [first.input[0], "second axis"], ["apart"])
    model.graph.node.insert(place, apart)
    model.graph.node[place + 1].input[:] = ["apart", "each"]


@pytest.mark.parametrize("change", [with_scores_of_all, repeated_one_by_one])
def test_what_all_experts_compute_stays_where_it_is_something_else(change: Change) -> None:
    model = decoder(replace(MOE, form=PLAIN))
    change(model)
    found = with_fixed_shapes(model, PROBE)
    assert len([node for node in found.graph.node if is_product(node)]) == 2 * (MOE.layers - 1)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("experts") / "db.sqlite"


@pytest.fixture(scope="module")
def compiled(database: Path) -> CompiledDecoder:
    options = DecoderOptions((1, 8, 32), threads=2, db=database, quick=True)
    return compile_decoder(decoder(MOE), options, default_registry(), lambda progress: None)


def test_the_engine_gives_the_tokens_of_onnx_runtime(compiled: CompiledDecoder) -> None:
    """Tokens of an iteration choose experts of their own, whatever is padded or comes from other requests."""
    original = OriginalDecoder(decoder(MOE), 1)
    prompts = [tuple(range(first, first + 3 * first)) for first in range(1, 12)]
    runner = DecoderRunner(compiled, default_registry(), 64)
    with Engine(runner, EngineOptions(max_running=6)) as engine:
        streams = [engine.submit(prompt, Sampling(max_tokens=9, temperature=0)) for prompt in prompts]
        found = [stream.result().tokens for stream in streams]
    for prompt, tokens in zip(prompts, found, strict=True):
        logits = original.logits([*prompt, *tokens[:-1]])[len(prompt) - 1 :]
        assert tokens == tuple(logits.argmax(-1))


def test_experts_are_divided_among_processes(database: Path) -> None:
    """Compiling for two processes compares the whole with ONNX Runtime; each has half of every expert's columns."""
    options = DecoderOptions((1, 8), threads=1, db=database, quick=True, processes=2)
    parts = compile_divided(decoder(MOE), options, default_registry(), lambda progress: None)
    assert [part.processes for part in parts] == [2, 2]
