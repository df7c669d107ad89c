"""Decoders with weights in bfloat16: the logits stay within the error that was allowed, and the file tells it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collage.api import default_registry
from collage.kernel.frames import Framed
from collage.serve import Engine, Sampling
from collage.serve.decoder.build import compile_decoder, within
from collage.serve.decoder.check import OriginalDecoder
from collage.serve.decoder.compile import DecoderOptions
from collage.serve.decoder.file import load_decoder, save_decoder
from collage.serve.decoder.runner import DecoderRunner
from collage.serve.runner import Slice
from scripts.lib.decoders.build import decoder
from scripts.lib.decoders.shape import NAMED, small
from tests.helpers.backends.native_checks import needs_native

TOLERANCE = 5e-2


@dataclass(frozen=True)
class Made:
    """What stands for a compiled decoder. Its logits have ``factor`` times the error of its segments."""

    reduced: bool
    share: float
    error: float = 0.0
    tolerance: float = 0.0


def asked(tolerance: float, factor: float, least: float = 0.0) -> tuple[list[float], Made]:
    """The errors of segments that were asked for, and what came of it; bfloat16 has no use below ``least``."""
    shares: list[float] = []

    def compile_at(options: DecoderOptions) -> Any:
        shares.append(options.tolerance)
        return [Made(options.tolerance > least, options.tolerance)]

    def error_of(parts: Sequence[Any], exact: bool) -> float:
        assert exact == (not parts[0].reduced)
        return 1e-6 if exact else factor * parts[0].share

    (found,) = within(DecoderOptions(tolerance=tolerance), compile_at, error_of)
    assert isinstance(found, Made)
    return shares, found


def test_segments_get_less_where_the_logits_have_too_much() -> None:
    assert asked(0.0, 3.0) == ([0.0], Made(False, 0.0, 1e-6, 0.0))
    shares, found = asked(0.02, 0.5)
    assert shares == [0.02]
    assert found == Made(True, 0.02, 0.01, 0.02)
    shares, found = asked(0.02, 4.0)
    assert shares == [0.02, pytest.approx(0.85 * 0.02 / 4)]
    assert found.error == pytest.approx(0.85 * 0.02)
    shares, found = asked(0.02, 4.0, least=0.01)
    assert len(shares) == 2
    assert not found.reduced
    shares, found = asked(0.02, 1000.0)
    assert shares == [0.02, 0.0]
    assert not found.reduced


@needs_native
def test_logits_are_within_the_tolerance(tmp_path: Path) -> None:
    """One bucket and one thread, since a compile that measures errors is none that is quick."""
    model = decoder(small(NAMED["gpt2_124m"], 3))
    registry = default_registry()
    options = DecoderOptions((8,), 200, threads=1, db=tmp_path / "db.sqlite", tolerance=TOLERANCE)
    found = compile_decoder(model, options, registry, lambda _: None)
    assert found.tolerance == TOLERANCE
    assert (1e-4 if found.reduced else 0.0) < found.error <= TOLERANCE
    # Layers of one structure have the placement of the first one, with weights of their own.
    first, second = found.segments[8][1:3]
    precisions, weights = (
        [[each.precision for each in parts.program.launches] for parts in (first, second)],
        [
            [bytes(array) for each in parts.artifacts if isinstance(each, Framed) for array in each.arrays]
            for parts in (first, second)
        ],
    )
    assert precisions[0] == precisions[1]
    assert weights[0]
    assert weights[0] != weights[1]
    path = tmp_path / "it.collage"
    save_decoder(found, path)
    loaded = load_decoder(path, registry)
    assert (loaded.error, loaded.tolerance, loaded.reduced) == (found.error, TOLERANCE, found.reduced)
    with closing(DecoderRunner(loaded, registry, 8)) as runner:
        tokens = np.random.default_rng(5).integers(0, 256, 60).tolist()
        wanted = OriginalDecoder(model, 2).logits(tokens)
        for at in range(0, 56, 8):
            (row,) = runner.step([Slice(tuple(tokens[at : at + 8]), at, (3, 5), True)])
            assert np.abs(row - wanted[at + 7]).max() <= 2 * TOLERANCE * np.abs(wanted[at + 7]).max()
        with Engine(runner) as engine:
            streams = [engine.submit([1, 2, 3], Sampling(max_tokens=20, temperature=0)) for _ in range(3)]
            assert [len(each.result().tokens) for each in streams] == [20] * 3
