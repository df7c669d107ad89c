"""No kernel lets an item of a batch change what another one's result is."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from collage.kernel.options import BuildOptions
from tests.backends.native_checks import BACKEND, needs_native, run_variant, subgraphs_of
from tests.backends.product_models import product_model
from tests.compile.backends.test_native_strassen import any_size
from tests.compile.backends.test_native_winograd import conv_model, transposed_model
from tests.slow.backends.test_native_direct import conv_model as grouped_model

pytestmark = needs_native

MODELS = {
    "groups of 8": grouped_model(4, (8, 8), [9, 10], [3, 3], batch=3, pads=[1] * 4, then=("Relu",)),
    "groups of 20": grouped_model(2, (20, 20), [9, 10], [3, 3], batch=3, pads=[1] * 4),
    "depthwise": grouped_model(19, (1, 1), [9, 10], [5, 5], batch=3, pads=[2] * 4, then=("Clip",)),
    "winograd": conv_model((16, 32), [11, 9], [3, 3], batch=3, pads=[1] * 4, then=("Relu",)),
    "winograd of planes": conv_model((16, 16), [4, 7, 7], [3, 3, 3], batch=3, pads=[1] * 6),
    "transposed": transposed_model((32, 16), [5, 7], batch=3, pads=[1] * 4),
    "narrow": transposed_model((32, 3), [5, 7], batch=3, pads=[1] * 4, then=("Relu",)),
    "shallow": conv_model((3, 16), [12, 13], [7, 7], batch=3, strides=[2, 2], pads=[3] * 4),
    "shallow planes": conv_model((3, 16), [8, 9, 9], [3, 3, 3], batch=3, pads=[1] * 6),
    "strassen": conv_model((64, 64), [7, 7], [1, 1], batch=3, then=("Relu",)),
    "products": product_model([3, 23, 64], 64, then=("Gelu",)),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("odd", [1e6, 1e-6, np.nan, np.inf])
def test_other_items_are_as_without(name: str, odd: float) -> None:
    proto: onnx.ModelProto = MODELS[name]
    with any_size():
        chain = subgraphs_of(proto)[-1]
        rng = np.random.default_rng(0)
        inputs = [rng.standard_normal(kind.shape).astype(np.float32) for kind in chain.input_types]
        changed = [inputs[0].copy(), *inputs[1:]]
        changed[0].reshape(3, -1)[1] *= np.float32(odd)
        for variant in BACKEND.variants(chain, BuildOptions(threads=2)):
            usual, found = (run_variant(chain, variant, 2, each)[0] for each in (inputs, changed))
            usual, found = usual.reshape(3, -1), found.reshape(3, -1)
            # Strassen's rounds rows a little otherwise beside other ones; all else is the same to the bit.
            atol = 2e-5 if "strassen" in variant.split else 0
            np.testing.assert_allclose(found[[0, 2]], usual[[0, 2]], rtol=0, atol=atol, err_msg=str(variant))
            assert not np.array_equal(found[1], usual[1])
            assert not np.isnan(odd) or np.isnan(found[1]).any()
