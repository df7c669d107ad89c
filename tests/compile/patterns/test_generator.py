"""Figure 2.4: what the generator grows, and that Listing 1 runs as printed."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from collage.frontend.model import import_model
from collage.graph.dataflow import OpKind
from collage.patterns.context import MatchContext, OpNode
from collage.patterns.fusion import FusionRule
from collage.patterns.generator import generate, text_of
from collage.patterns.rules import BasePatternRule, check_path
from tests.helpers.models import conv_net, make_model

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(scope="module")
def figure() -> MatchContext:
    """Conv → Add → Relu on one branch, Tanh beside it, both into Add, then Dense: Figure 2.4's kind of graph."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((4, 3, 3, 3)).astype(np.float32),
        "d": rng.standard_normal((6, 5)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("Tanh", ["c"], ["t"], "tanh"),
        helper.make_node("Add", ["r", "t"], ["a"], "join"),
        helper.make_node("MatMul", ["a", "d"], ["y"], "dense"),
    ]
    return MatchContext(import_model(make_model(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 4, 6, 5]}, weights)))


class FuseAll(BasePatternRule):
    """Everything after a convolution or matmul, as long as it is elementwise or broadcast."""

    @staticmethod
    def op_rule(op: OpNode) -> bool | str:
        return True

    @staticmethod
    def fusion_rule(cur_type: Any, src: OpNode, sink: OpNode) -> bool:
        return cur_type is OpKind.OUT_FUSABLE and check_path(
            src, sink, lambda kind: kind in (OpKind.ELEMWISE, OpKind.BROADCAST)
        )


def groups(context: MatchContext, rule: BasePatternRule) -> set[str]:
    return {text_of(context, g.nodes) for g in generate(context, rule) if not g.reason}


def test_growth_takes_whole_branches_up_to_the_post_dominator(figure: MatchContext) -> None:
    found = groups(figure, FuseAll())
    assert any(sorted(text.split("+")) == ["add", "conv2d", "relu", "tanh"] for text in found)
    assert not found & {"conv2d+relu", "conv2d+tanh"}, "one branch alone lets the convolution's result escape"


def test_growth_stops_where_the_rule_breaks(figure: MatchContext) -> None:
    assert not any("conv2d" in text and "matmul" in text for text in groups(figure, FuseAll()))


def test_tvm_fusion_rules() -> None:
    context = MatchContext(import_model(conv_net()))
    found = groups(context, FusionRule())
    assert {"conv2d+add", "conv2d+add+add+relu", "add+relu", "add+add+relu+mean"} <= found
    assert not any(text.startswith("mean+") for text in found), "nothing is fused after a reduction"
    assert not any("matmul" in text and text != "matmul" for text in found)


def test_listing_1_runs_as_printed(capsys: pytest.CaptureFixture[str]) -> None:
    import collage

    collage.default_registry.cache_clear()
    try:
        runpy.run_path(str(EXAMPLES / "listing1.py"), run_name="__main__")
    finally:
        collage.default_registry.cache_clear()
    lines = capsys.readouterr().out.splitlines()
    assert any("conv2d+relu+tanh" in line for line in lines)
    assert not any("tanh+matmul" in line for line in lines)
