"""Contenders from outside, for races: `elementwise_net` in NumPy, right and wrong, and one that is broken."""

from __future__ import annotations

import numpy as np

from collage.bench.worker import Outputs, Setup
from collage.kernel.kernel import Call


def right(setup: Setup) -> tuple[Call, Outputs]:
    (x,) = setup.inputs.values()
    y = np.empty_like(x)

    def run() -> None:
        np.add(np.maximum(x, 0), np.tanh(x) * np.float32(2), out=y)

    return run, lambda: [y]


def wrong(setup: Setup) -> tuple[Call, Outputs]:
    (x,) = setup.inputs.values()
    return lambda: None, lambda: [x]


def broken(setup: Setup) -> tuple[Call, Outputs]:
    raise RuntimeError(f"no kernel for {setup.threads} threads")
