"""Direct algorithms only, on request; and the report's word about the others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import collage
from collage.backends.base import NOT_DIRECT
from collage.core.progress import Progress
from collage.kernel.options import BuildOptions
from tests.compile.backends.test_native_winograd import conv_model
from tests.helpers.backends.native_checks import BACKEND, needs_native, run_variant, subgraphs_of
from tests.helpers.models import make_model
from tests.helpers.reference import evaluate

pytestmark = needs_native


def two_convolutions() -> onnx.ModelProto:
    """Two for Winograd's algorithm."""
    rng = np.random.default_rng(0)
    weights = {
        "w": (rng.standard_normal((128, 16, 3, 3)) / 12).astype(np.float32),
        "v": (rng.standard_normal((64, 128, 3, 3)) / 34).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4, name="wide"),
        helper.make_node("Relu", ["y"], ["z"]),
        helper.make_node("Conv", ["z", "v"], ["out"], pads=[1] * 4, name="second"),
    ]
    return make_model(nodes, {"x": [1, 16, 28, 28]}, {"out": [1, 64, 28, 28]}, weights)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exact")


@pytest.fixture(scope="module")
def usual(folder: Path) -> collage.CompiledModule:
    """Only with kernels of our own, which reassociate."""
    return collage.compile(two_convolutions(), backends=["native"], db=folder / "db.sqlite", progress=False)


def _splits(module: collage.CompiledModule) -> str:
    """Of all candidates."""
    return "; ".join(each.split for each in module.report.candidates)


def test_no_algorithm_that_reassociates_is_offered(folder: Path) -> None:
    model, names, db = two_convolutions(), ["native", "onnxruntime"], folder / "both.sqlite"
    both = collage.compile(model, backends=names, db=db, progress=False)
    assert "winograd" in _splits(both)
    events: list[Progress] = []
    exact = collage.compile(model, backends=names, db=db, progress=events.append, reassociate=False)
    assert "winograd" not in _splits(exact)
    assert not any(region.reassociates for region in exact.program.regions)
    reasons = {each.reason for each in exact.report.candidates if each.backend == "native"}
    assert any(NOT_DIRECT in reason for reason in reasons)
    # What is the same kernel either way is not measured again, but for what has lost a race against one that is not.
    assert not [each for each in events if each.stage == "measure" and each.text.startswith("native: ")]
    x = np.zeros((1, 16, 28, 28), np.float32)
    x[0, :, 14, 14] = 1e6
    x[0, :, 20, 20] = 1e-3
    exact_zeros = exact(x)[0, :, 17, 17]
    np.testing.assert_array_equal(exact_zeros, np.zeros(64, np.float32))


def test_a_convolution_of_few_channels_has_a_direct_kernel_in_its_place() -> None:
    chain = subgraphs_of(conv_model((3, 16), [8, 12, 12], [3, 3, 3], pads=[1] * 6))[-1]
    usual = BACKEND.variants(chain, BuildOptions(threads=2))
    exact = BACKEND.variants(chain, BuildOptions(threads=2, reassociate=False))
    assert all("winograd over planes" in each.split for each in usual)
    assert len(exact) == len(usual)
    assert not any("winograd" in each.split for each in exact)
    assert all(BACKEND.reassociates(chain, each) for each in usual)
    assert not any(BACKEND.reassociates(chain, each) for each in exact)
    data = np.random.default_rng(0).standard_normal((1, 3, 8, 12, 12)).astype(np.float32)
    data[:, :, 3] *= 1e6
    (wanted,) = evaluate(chain, [data])
    plane = np.abs(wanted).max((0, 1, 3, 4), keepdims=True)
    for variant in exact:  # planes that do not see the large one are right beside it
        (found,) = run_variant(chain, variant, 2, [data], direct=True)
        assert (np.abs(found - wanted) / plane).max() < 2e-6
