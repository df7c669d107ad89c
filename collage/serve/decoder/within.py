"""Compiling a decoder within an error of its logits: weights in bfloat16 where that is faster.

Each segment is compiled within an error of its own outputs. What these errors make of the logits is measured on the
whole decoder. Where it is too much, the segments are compiled again with less, and at last in float32.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from collage.compiler.metrics import check_tolerance
from collage.errors import UsageError
from collage.serve.decoder.compile import DecoderOptions
from collage.serve.decoder.compiled import CompiledDecoder

log = logging.getLogger(__name__)

Parts = Sequence[CompiledDecoder]

_ROUNDS = 3
_AIM = 0.85
"""The share of the tolerance that is aimed at, because other tokens have somewhat larger errors."""
_LEAST = 1e-4
"""An error of a segment below which bfloat16 has no use."""


def check_options(options: DecoderOptions) -> None:
    """Raise UsageError for a tolerance that cannot be kept."""
    if check_tolerance(options.tolerance) and options.quick:
        raise UsageError(
            "a quick compile measures no errors: leave out either quick or tolerance (--quick or --tolerance)."
        )


def within(
    options: DecoderOptions,
    compile_at: Callable[[DecoderOptions], Parts],
    error_of: Callable[[Parts, bool], float],
) -> tuple[CompiledDecoder, ...]:
    """The parts of a decoder whose logits are within ``options.tolerance``, with the error that they have.

    ``compile_at`` gets options whose tolerance is the largest error of each segment. ``error_of`` measures that of the
    logits; it gets whether that has to be explained by float32, and raises ModelError where it is not.
    """
    tolerance = options.tolerance
    share, rounds = tolerance, 0
    while rounds < _ROUNDS and share >= _LEAST:
        rounds += 1
        parts = compile_at(replace(options, tolerance=share))
        reduced = any(each.reduced for each in parts)
        error = error_of(parts, not reduced)
        if error <= tolerance or not reduced:
            return _told(parts, error, tolerance)
        log.warning(
            "segments within %.2g give logits with an error of %.2g: again, within less", share, error
        )
        share *= _AIM * tolerance / error
    if rounds:
        log.warning("no placement in reduced precision is within %g; float32 remains", tolerance)
    parts = compile_at(replace(options, tolerance=0.0))
    return _told(parts, error_of(parts, True), tolerance)


def _told(parts: Parts, error: float, tolerance: float) -> tuple[CompiledDecoder, ...]:
    return tuple(replace(each, error=error, tolerance=tolerance) for each in parts)
