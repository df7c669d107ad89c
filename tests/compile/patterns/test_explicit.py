"""Explicit patterns: short names, constraints, escaping intermediates, convexity."""

from __future__ import annotations

import pytest
from onnx import helper

import collage
from collage import is_op, wildcard
from collage.errors import RegistrationError
from collage.frontend.model import import_model
from collage.patterns import BackendPattern, is_tuple
from collage.patterns.context import MatchContext
from collage.patterns.match import find_matches
from collage.patterns.names import OpName
from tests.helpers.models import conv_net, make_model


@pytest.fixture(scope="module")
def context() -> MatchContext:
    return MatchContext(import_model(conv_net()))


def texts(context: MatchContext, pattern: BackendPattern) -> list[str]:
    matches, _ = find_matches(context, "test", [pattern])
    return ["+".join(context.ops[n].name for n in m.nodes) for m in matches]


def test_conv_add_relu_matches_once(context: MatchContext) -> None:
    conv = is_op("conv2d")(wildcard(), wildcard())
    pattern = is_op("relu")(is_op("add")(conv, wildcard()))
    assert texts(context, BackendPattern(pattern)) == ["conv2d+add+relu"]


def test_escaping_intermediates_are_rejected_with_the_reason(context: MatchContext) -> None:
    relu = is_op("relu")(wildcard())
    pattern = is_op("conv2d")(relu, wildcard())  # the relu also feeds the residual add
    matches, rejected = find_matches(context, "test", [BackendPattern(pattern, "relu_conv")])
    assert not matches
    (found,) = rejected
    assert "escaping intermediate" in found.reason
    assert "relu1" in found.reason


def test_split_and_its_parts_are_one_operator() -> None:
    nodes = [
        helper.make_node("Split", ["x"], ["a", "b"], axis=0, num_outputs=2),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    context = MatchContext(import_model(make_model(nodes, {"x": [4, 3]}, {"y": [2, 3]})))
    assert texts(context, BackendPattern(is_op("split")(wildcard()))) == ["split"]


def test_unknown_operator_names_are_refused_with_similar_ones() -> None:
    with pytest.raises(RegistrationError, match=r"conv2dd.*Similar: .*relax\.nn\.conv2d"):
        is_op("conv2dd")


def test_patterns_wait_for_their_backend_and_ignore_case() -> None:
    registry = collage.builtin_registry(with_entry_points=False)
    registry.patterns.add_pattern("cuDNN", is_op("relu")(wildcard()))
    assert len(registry.patterns.sources("cudnn")) == 1
    with pytest.raises(RegistrationError, match="pattern language"):
        registry.patterns.add_pattern("tvm", "conv2d")
    with pytest.raises(RegistrationError, match="give an instance"):
        registry.patterns.add_rule("tvm", collage.BasePatternRule)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["dense", "matmul", "relax.matmul", "batch_matmul"])
def test_aliases_are_equal(name: str) -> None:
    assert OpName("matmul") == name
    assert OpName("matmul") != "conv2d"
    assert OpName("matmul") in ("conv2d", name)


def test_operators_with_too_many_arguments_are_refused_wherever_they_stand() -> None:
    registry = collage.builtin_registry(with_entry_points=False)
    wrong = is_op("relu")(wildcard(), wildcard(), wildcard())
    for pattern in (
        wrong,
        is_op("add")(wrong, wildcard()),
        wildcard() | wrong,
        is_op("concat")(is_tuple([wrong])),
    ):
        with pytest.raises(RegistrationError, match=r"is_op\('relu'\) has 3 arguments; the operator takes 1 at most"):
            registry.patterns.add_pattern("tvm", pattern)
    registry.patterns.add_pattern("tvm", is_op("relu")(wildcard()) | is_op("add")(wildcard(), wildcard()))


def test_a_rule_that_raises_is_left_out_with_a_warning(context: MatchContext, caplog: pytest.LogCaptureFixture) -> None:
    def check(ops: object) -> bool:
        raise ValueError("boom")

    sources = [
        BackendPattern(is_op("conv2d")(wildcard(), wildcard()), "mine", check),
        BackendPattern(is_op("relu")(wildcard()), "other"),
    ]
    matches, rejected = find_matches(context, "test", sources)
    assert {each.pattern for each in matches} == {"other"} and not rejected
    (told,) = caplog.messages
    assert told.startswith("backend test: its pattern or rule mine is left out, since it raised ValueError: boom (")
    assert "test_explicit.py, line" in told


def test_onnx_names_are_told_relaxs() -> None:
    with pytest.raises(RegistrationError, match="'Relu' is ONNX's name; Relax's is 'relu'"):
        is_op("Relu")
    with pytest.raises(RegistrationError, match="Relax's is 'conv1d' or 'conv2d' or 'conv3d'"):
        is_op("Conv")
