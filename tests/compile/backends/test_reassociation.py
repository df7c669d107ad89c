"""What a backend says of its algorithms is so: direct ones do not feel what a result's definition does not see."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from collage.backends.base import Backend, UnsupportedError
from collage.backends.registry import builtin_registry
from collage.frontend.model import import_model
from collage.frontend.subgraph import Subgraph
from collage.kernel.options import BuildOptions, Variant
from collage.testing.buffers import results_of
from tests.compile.backends.test_native_winograd import conv_model
from tests.helpers.backends.product_models import product_model
from tests.helpers.reference import evaluate

BACKENDS = {name: b for name, b in builtin_registry().select(None).items() if name not in ("view", "layout")}

MODELS = {
    "3x3": conv_model((64, 64), [28, 28], [3, 3], pads=[1] * 4, bias=False),
    "1x1": conv_model((128, 128), [28, 28], [1, 1], bias=False),
    "3x3x3": conv_model((16, 32), [6, 14, 14], [3, 3, 3], pads=[1] * 6, bias=False),
    "product": product_model([256, 128], 128, bias=False),
}


def run(backend: Backend, subgraph: Subgraph, variant: Variant, data: np.ndarray) -> np.ndarray:
    options = BuildOptions(threads=2, variant=variant)
    kernel = backend.load(backend.codegen(subgraph, options), options)
    (found,) = results_of(kernel, subgraph, variant, [data])
    return found


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("what", MODELS)
def test_small_numbers_beside_large_ones(what: str, name: str) -> None:
    proto: onnx.ModelProto = MODELS[what]
    subgraph = Subgraph(import_model(proto), (0,))
    backend, x = BACKENDS[name], np.random.default_rng(0).standard_normal(subgraph.input_types[0].shape)
    data = x.astype(np.float32)
    place = (5,) if what == "product" else (0, slice(None), *[n // 2 for n in data.shape[2:]])
    data[place] *= 1e6
    (wanted,) = evaluate(subgraph, [data])
    data[place] *= 2
    (other,) = evaluate(subgraph, [data])
    data[place] /= 2
    unseen = other == wanted
    assert 0.5 < unseen.mean() < 1
    direct = 0
    for variant in backend.variants(subgraph, BuildOptions(threads=2)):
        if not backend.reassociates(subgraph, variant):
            direct += 1
            try:
                found = run(backend, subgraph, variant, data)
            except UnsupportedError:  # of TVM, without a tuned schedule
                continue
            assert np.abs(found - wanted)[unseen].max() < 3e-5, variant
    assert direct or name in ("native", "mkl")
