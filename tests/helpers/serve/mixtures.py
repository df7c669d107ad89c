"""Decoders with mixtures of experts, the check that a rewritten one computes the same, and changes of their nodes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import numpy_helper

from collage.serve.decoder.check import OriginalDecoder
from collage.serve.decoder.experts.rewrite import with_fixed_shapes
from collage.serve.decoder.onnx_graph import DOMAIN, PROBE, in_operators
from collage.serve.decoder.recognise import recognise
from collage.serve.decoder.segments import cut, refuse_mixing
from scripts.lib.decoders.shape import NAMED, small

MOE = small(NAMED["moe_like"], 2)
Change = Callable[[onnx.ModelProto], None]


def rewritten(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with products that choose their matrix, written in ONNX's operators."""
    found = with_fixed_shapes(model, PROBE)
    assert found is not model
    nodes = in_operators(found.graph.node)
    del found.graph.node[:]
    found.graph.node.extend(nodes)
    sets = [each for each in found.opset_import if each.domain != DOMAIN]
    del found.opset_import[:]
    found.opset_import.extend(sets)
    onnx.checker.check_model(found)
    return found


def check_same(model: onnx.ModelProto) -> onnx.ModelProto:
    """Rewrite a model, and compare its logits with the original's. Returns the one that was rewritten."""
    found = rewritten(model)
    before, after = OriginalDecoder(model, 1), OriginalDecoder(found, 1)
    for count in (1, 2, 40):
        tokens = np.random.default_rng(count).integers(0, MOE.vocabulary, count).tolist()
        wanted = before.logits(tokens)
        assert np.abs(after.logits(tokens) - wanted).max() < 2e-5 * np.abs(wanted).max()
    return found


def users(model: onnx.ModelProto, kind: str) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.op_type == kind]


def refuse(model: onnx.ModelProto) -> None:
    """Raise ModelError, as a compile does before it measures anything."""
    described, graph = recognise(model, "it")
    refuse_mixing(graph, cut(graph, described), PROBE.tokens)


def first(model: onnx.ModelProto, kind: str, place: int = 0) -> onnx.NodeProto:
    """The first node of a kind, or one that follows."""
    return users(model, kind)[place]


def constant(model: onnx.ModelProto, array: np.ndarray) -> str:
    """The name of a new constant."""
    name = f"another {len(model.graph.initializer)}"
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return name


def exchanged(node: onnx.NodeProto) -> None:
    node.input[0], node.input[1] = node.input[1], node.input[0]


def maker(model: onnx.ModelProto, name: str) -> onnx.NodeProto:
    return next(node for node in model.graph.node if name in node.output)
