"""Names of operators: aliases are equal, and ONNX's names are told Relax's."""

from __future__ import annotations

import pytest

from collage.errors import RegistrationError
from collage.patterns.names import relax_names, short_name


def test_a_rule_that_names_relu_as_onnx_does_is_told_relu() -> None:
    with pytest.raises(RegistrationError, match="'Relu' is 'relu'"):
        assert short_name("nn.relu") in ("Tanh", "Relu")
    with pytest.raises(RegistrationError, match="'Gemm' is 'matmul'"):
        assert short_name("matmul") == "Gemm"


def test_names_of_other_operators_are_only_different() -> None:
    assert short_name("tanh") != "Relu"
    assert short_name("matmul") == "dense" == short_name("relax.matmul")
    assert short_name("onnx.NonMaxSuppression") == "onnx.NonMaxSuppression"
    assert short_name("relu") != 3


@pytest.mark.parametrize(
    ("onnx", "relax"),
    [("Relu", ("relu",)), ("Conv", ("conv1d", "conv2d", "conv3d")), ("Transpose", ("permute_dims",)), ("relu", ())],
)
def test_relax_names(onnx: str, relax: tuple[str, ...]) -> None:
    assert relax_names(onnx) == relax
