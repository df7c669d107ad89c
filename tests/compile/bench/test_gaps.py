"""Gaps to engines: layers and kernels of the same nodes, and the profiles of both engines."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.helper import make_node

from collage.backends.engine import Engine, Layer, artifact_for
from collage.backends.onnxruntime import OnnxRuntime
from collage.backends.openvino import OpenVino
from collage.bench.gaps import Part, compare
from collage.kernel.options import BuildOptions
from tests.helpers.models import conv_net, make_model


def layer(us: float, *nodes: str, reads: tuple[int, ...] = ()) -> Layer:
    return Layer("kind", us, frozenset(nodes), reads)


def part(us: float, *nodes: str, partner: int | None = None) -> Part:
    return Part(us, "layout" if partner is not None else "ours", frozenset(nodes), partner)


def test_layers_and_kernels_meet_at_their_nodes() -> None:
    nodes = [make_node("Relu", [f"v{at}"], [f"v{at + 1}"], name) for at, name in enumerate("abcdef")]
    graph = make_model(nodes, {"v0": [4]}, {"v6": [4]}).graph
    layers = [
        layer(0.0),  # an input
        layer(5.0, "b", reads=(0,)),  # with a, which nobody names
        layer(1.0, reads=(1,)),  # a change of the layout for the next one
        layer(7.0, "c", "strange", reads=(2,)),
        layer(2.0, "d", reads=(3,)),
        layer(3.0, "e", reads=(4,)),  # with f
        layer(1.0, reads=(5,)),  # another change, before an output
        layer(0.0, reads=(6,)),
    ]
    parts = [part(9.0, "a", "b"), part(2.0, partner=2), part(10.0, "c", "d"), part(1.0, "e")]
    found = compare(graph, layers, parts)
    assert [each["nodes"] for each in found] == [["a", "b"], ["c", "d"], ["e", "f"]]
    assert [each["engine_us"] for each in found] == [5.0, 10.0, 4.0]
    assert [each["ours_us"] for each in found] == [9.0, 12.0, 1.0]
    assert [each["loss_us"] for each in found] == [4.0, 2.0, -3.0]
    assert [each["backends"] for each in found] == [["ours"], ["layout", "ours"], ["ours"]]
    (*_, last) = compare(graph, layers, parts[:3])
    assert (last["nodes"], last["ours_us"], last["loss_us"]) == (["e", "f"], None, None)


@pytest.mark.parametrize("engine", [OnnxRuntime(), OpenVino()])
def test_profiles_name_the_nodes_of_the_model(engine: Engine) -> None:
    model = conv_net(32, 64)
    options = BuildOptions(threads=2, exclusive=True)
    inputs = [np.ones((1, 3, 64, 64), np.float32)]
    layers = engine.layer_times(artifact_for(engine, model, options), inputs, options)
    for fused in ({"conv1", "relu1"}, {"conv2", "residual", "relu2"}):
        assert any(each.us > 0 for each in layers if each.nodes & fused)
    assert {at for each in layers for at in each.reads} <= set(range(len(layers)))
