"""Inputs of real networks."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from scripts.lib.realmodels import inputs


def test_inputs_of_two_seeds_have_nothing_in_common() -> None:
    for draw, name, shape in (
        (inputs.pages, "x", (1, 3, 320, 320)),
        (inputs.files, "bytes", (1, 2048)),
        (inputs.turned_lines, "x", (1, 3, 48, 192)),
    ):
        drawn = [each[name] for seed in (inputs.SAMPLES, inputs.DRAWS) for each in draw(Path(), 3, seed)]
        assert [each.shape for each in drawn] == [shape] * 6
        assert not any(np.array_equal(one, other) for one in drawn[:3] for other in drawn[3:])
