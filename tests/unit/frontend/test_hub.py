"""Addresses of models on the Hugging Face Hub, and which file of a repository is meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from collage.errors import ModelError, UsageError
from collage.frontend.read.hub import Address, _chosen, is_address


def test_addresses() -> None:
    assert is_address("hf://a/b") and not is_address("a/b") and not is_address(Path("hf://a/b"))
    for text, wanted in (
        ("hf://a/b", Address("a/b", None, "")),
        ("hf://a/b/", Address("a/b", None, "")),
        ("hf://a/b/onnx/model.onnx", Address("a/b", None, "onnx/model.onnx")),
        ("hf://a/b@v1.0/model.onnx", Address("a/b", "v1.0", "model.onnx")),
        ("hf://a/b@main", Address("a/b", "main", "")),
    ):
        assert Address.parse(text) == wanted


@pytest.mark.parametrize(
    "text", ["hf://", "hf://a", "hf:///b", "hf://a/", "hf://a/b/model.safetensors", "hf://a/b/onnx"]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Address.parse(text)
    assert text in str(caught.value) and "\n" not in str(caught.value)


def test_the_file_that_is_meant() -> None:
    address = Address("a/b", None, "")
    others = ["onnx/model_quantized.onnx", "onnx/decoder.onnx", "README.md", "model.safetensors"]
    assert _chosen(address, ["onnx/model.onnx", "model.onnx", *others]) == "model.onnx"
    assert _chosen(address, ["onnx/model.onnx", *others]) == "onnx/model.onnx"
    assert _chosen(address, ["net/x.onnx", "README.md"]) == "net/x.onnx"
    with pytest.raises(
        UsageError, match=r"onnx/decoder.onnx, onnx/model_quantized.onnx. Name one, such as hf://a/b/onnx/"
    ):
        _chosen(address, others)
    with pytest.raises(ModelError, match=r"a/b has no .onnx file"):
        _chosen(address, ["README.md"])
