"""Concatenations and splits that nobody runs: real kernels write and read the parts of one buffer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

import collage
from collage.backends.onednn import OneDnn
from tests.helpers.models import make_model

pytestmark = pytest.mark.skipif(not OneDnn().available(), reason=OneDnn().available().reason)

SIZE = 48
"""Pictures are large enough for a copy to cost more than a launch does, which a fused concatenation would save."""


def joins() -> onnx.ModelProto:
    """Results of two convolutions and of the input joined, split again, worked on and joined again."""
    rng = np.random.default_rng(0)
    weights = {
        name: (rng.standard_normal((16, channels, 3, 3)) / 9).astype(np.float32)
        for name, channels in (("a", 16), ("b", 16), ("c", 32))
    }
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["p"], pads=[1] * 4),
        helper.make_node("Conv", ["x", "b"], ["q"], pads=[1] * 4),
        helper.make_node("Relu", ["q"], ["r"]),
        helper.make_node("Abs", ["x"], ["z"]),
        helper.make_node("Concat", ["p", "r", "z"], ["j"], axis=1),
        helper.make_node("Split", ["j", "sizes"], ["s", "t"], axis=1),
        helper.make_node("Tanh", ["s"], ["u"]),
        helper.make_node("Conv", ["t", "c"], ["v"], pads=[1] * 4),
        helper.make_node("Concat", ["u", "v"], ["y"], axis=1),
    ]
    weights["sizes"] = np.array([16, 32], np.int64)
    return make_model(
        nodes,
        {"x": [1, 16, SIZE, SIZE]},
        {"y": [1, 32, SIZE, SIZE], "p": [1, 16, SIZE, SIZE]},
        weights,
    )


@pytest.mark.parametrize("threads", [1, 2])
def test_parts_are_made_in_their_place(threads: int, tmp_path: Path) -> None:
    # With TVM, the last concatenation fused with what is before it takes about as long.
    module = collage.compile(joins(), backends=["onednn"], threads=threads, db=tmp_path / "db.sqlite", progress=False)
    joined = [each for each in module.placement if each["ops"] in (["concat"], ["split"])]
    assert [each["backend"] for each in joined] == ["view"] * 3
    assert not {"concat", "split"} & {op for each in module.program.launches for op in each.ops}
    module.save(tmp_path / "joins.collage")
    loaded = collage.load(tmp_path / "joins.collage")
    assert loaded.program == module.program
    session = ort.InferenceSession(joins().SerializeToString(), providers=["CPUExecutionProvider"])
    bound = loaded.bind()
    for seed in range(5):
        x = np.random.default_rng(seed).standard_normal((1, 16, SIZE, SIZE)).astype(np.float32)
        bound.inputs["x"][...] = x
        for _ in range(2):
            bound()
        np.testing.assert_array_equal(bound.inputs["x"], x)
        wanted = session.run(None, {"x": x})
        for given, again, exact in zip(loaded(x), bound.outputs.values(), wanted, strict=True):
            np.testing.assert_allclose(given, exact, atol=1e-4 * np.abs(exact).max())
            np.testing.assert_array_equal(again, given)
    summary = module.summary()
    assert summary["arena_lower_bound_bytes"] <= summary["arena_bytes"] <= summary["value_bytes"] + 64 * 12
