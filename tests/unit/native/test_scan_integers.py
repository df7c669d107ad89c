"""The scan of integers: what is beyond 2^24 in magnitude is found, natively and by numpy."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

from collage.graph.magnitudes import INTEGER_LIMIT, SCANNED_INTEGERS
from collage.native import scan as module
from collage.native.scan import Scanned, new_flag, scan_call, scan_function


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("dtype", SCANNED_INTEGERS)
def test_integers(dtype: str, native: bool) -> None:
    if native and scan_function() is None:
        pytest.skip("the native kernels were not built")
    info = np.iinfo(dtype)
    at_limit = [0, 1, INTEGER_LIMIT, *([-1, -INTEGER_LIMIT] if info.min else [])]
    beyond = [INTEGER_LIMIT + 1, info.max, *([-INTEGER_LIMIT - 1, info.min] if info.min else [])]
    for size in (1, 17, 1000):
        for special in (*at_limit, *beyond):
            array = np.full(size, 3, dtype)
            array[size // 2] = special
            flag = new_flag()
            with mock.patch.object(module, "scan_function", return_value=scan_function() if native else None):
                scan_call([Scanned(array)], flag)()
            assert bool(flag[0]) == (special in beyond), special
