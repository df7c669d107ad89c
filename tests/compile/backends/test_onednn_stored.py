"""oneDNN's conversions from and to values in steps of 8 bits, which modules of commit cc9fc452 may hold."""

from __future__ import annotations

import numpy as np
import pytest

from collage.backends.layout import LayoutTransforms
from collage.graph.dataflow import TensorType
from collage.graph.storage import (
    BLOCKED,
    CHANNELS_LAST,
    CHANNELS_LAST_BF16,
    PLAIN,
    Storage,
    from_layout,
    steps_of,
    stored_in_steps,
    stored_type,
    to_layout,
)
from collage.kernel.buffers import aligned_array, aligned_copy, as_bytes, poison
from collage.kernel.options import BuildOptions
from collage.kernel.transform import LayoutTransform
from collage.native.kernel_library import rounding_problem
from tests.helpers.backends.onednn_checks import needs_onednn

pytestmark = [needs_onednn, pytest.mark.skipif(bool(rounding_problem()), reason=rounding_problem())]


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("other", [PLAIN, CHANNELS_LAST, BLOCKED, CHANNELS_LAST_BF16], ids=str)
@pytest.mark.parametrize("shape", [(1, 24, 7, 5), (2, 17, 3), (1, 3, 2, 3, 4)], ids=str)
def test_conversions(shape: tuple[int, ...], other: Storage, signed: bool) -> None:
    maker, build = LayoutTransforms(), BuildOptions(threads=2)
    kind = TensorType(shape, "float32")
    rng = np.random.default_rng(1)
    numbers = (40 * rng.standard_normal(shape)).astype(np.float32)  # some are beyond the steps
    steps = stored_in_steps(CHANNELS_LAST, signed, 0.37)
    for source, target in ((other, steps), (steps, other)):
        transform = LayoutTransform(kind, source, target)
        assert maker.transforms(transform)
        kernel = maker.load_transform(maker.codegen_transform(transform, build), build)
        taken = aligned_copy(to_layout(numbers, source))
        made = aligned_array(stored_type(kind, target))
        poison(made)
        kernel.bind([taken], [made])()
        plain = from_layout(taken, source, kind)
        expected = to_layout(plain, target)
        if steps_of(target) is None:
            np.testing.assert_array_equal(as_bytes(made), as_bytes(expected))
        else:
            assert np.abs(made.astype(int) - expected.astype(int)).max() <= 1
            assert np.mean(made != expected) < 0.01  # between two steps, rounding may differ
