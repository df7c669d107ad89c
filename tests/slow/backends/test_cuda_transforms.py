"""Layout transforms on the GPU, to it and from it, on the stand-ins: all formats and dtypes, and every odd number."""

from __future__ import annotations

import pytest

from collage.graph.storage import (
    CHANNELS_LAST,
    CHANNELS_LAST_BF16,
    CHANNELS_LAST_FP16,
    CUDA,
    PLAIN,
    PLAIN_BF16,
    PLAIN_FP16,
    Storage,
)
from tests.helpers.cuda_processes import Gpu

pytest.importorskip("cuda.bindings.nvrtc")

TRANSFORMS = """
import numpy as np
from collage.backends.cublas import Cublas
from collage.graph.dataflow import TensorType, np_dtype
from collage.graph.storage import from_layout, stored_type, to_layout
from collage.kernel.device_array import empty_on, put, to_host
from collage.kernel.device_call import DeviceCall
from collage.kernel.options import BuildOptions
from collage.kernel.transform import LayoutTransform
from tests.slow.backends.test_cuda_transforms import STORAGES

rng = np.random.default_rng(0)
odd = [np.nan, np.inf, -np.inf, 0.0, -0.0, 65519.0, 65520.0, -7e4, 3e38, 1e-45, 6e-8, 2.9e-8, 6.1e-5, 1e-40]
odd += [1 + 2**-11, 1 + 2**-9, 1 + 3 * 2**-9]
count = 0

def check(transform, given, wanted):
    # The transform of what is given as it is stored, done twice.
    ends = []
    for storage in (transform.source, transform.target):
        made = stored_type(transform.kind, storage)
        ends.append(empty_on(storage.device, made.shape, made.dtype))
    put(ends[0], given)
    artifact = Cublas().codegen_transform(transform, BuildOptions())
    call = Cublas().load_transform(artifact, BuildOptions()).bind([ends[0]], [ends[1]])
    assert isinstance(call, DeviceCall)
    for _ in range(2):
        call()
    found = to_host(ends[1])
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype), transform
    return found

for shape in ((2, 5, 6, 7), (1, 70, 3, 45), (2, 33, 40), (3, 1, 1, 1)):
    kind = TensorType(shape, "float32")
    values = (rng.normal(size=shape) * 10.0 ** rng.integers(-9, 9, shape)).astype(np.float32)
    values.reshape(-1)[: len(odd)] = odd[: values.size]
    for source in STORAGES:
        for target in STORAGES:
            transform = LayoutTransform(kind, source, target)
            if not Cublas().transforms(transform):
                continue
            count += 1
            given = to_layout(values, source)
            plain = from_layout(given, source, kind)
            wanted = to_layout(plain, target)
            found = check(transform, given, wanted)
            a, b = (each.astype(np.float32) for each in (found, wanted))
            np.testing.assert_array_equal(a, b, str(transform))
            numbers = ~np.isnan(b)
            assert (np.signbit(a) == np.signbit(b))[numbers].all(), transform
    for dtype in ("float16", "bfloat16"):  # of the model itself: every bit stays, of NaN, too
        kind = TensorType(shape, dtype)
        values = rng.integers(0, 1 << 16, shape, np.uint16).view(np_dtype(dtype))
        for source in STORAGES:
            for target in STORAGES:
                transform = LayoutTransform(kind, source, target)
                if Cublas().transforms(transform):
                    count += 1
                    wanted = to_layout(values, target)
                    found = check(transform, to_layout(values, source), wanted)
                    np.testing.assert_array_equal(found.view(np.uint16), wanted.view(np.uint16), str(transform))
print(count)
"""

_FORMATS = (PLAIN, CHANNELS_LAST, PLAIN_BF16, CHANNELS_LAST_BF16, PLAIN_FP16, CHANNELS_LAST_FP16)
STORAGES = tuple(Storage(device, each.format) for device in ("cpu", CUDA) for each in _FORMATS)


def test_transforms(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Elements arrive where they belong, and are rounded to the nearest, as numpy rounds them."""
    gpu = Gpu.build(tmp_path_factory.mktemp("transforms"))
    assert int(gpu.run(TRANSFORMS)) >= 100
