"""Compiling an ONNX decoder to one that was checked and measured."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from collage.backends.registry import Registry
from collage.check.metrics import check_tolerance
from collage.core.progress import Progress
from collage.errors import UsageError
from collage.frontend.read.load import ModelSource
from collage.serve.attention import BLOCK_TOKENS
from collage.serve.decoder.check import OriginalDecoder, check, error_of
from collage.serve.decoder.compile import DecoderOptions, compile_parts, name_of, with_costs
from collage.serve.decoder.compiled import CompiledDecoder
from collage.serve.decoder.config import DecoderConfig, decoder_file, read_config
from collage.serve.decoder.costs import MOST_REQUESTS, measured_ms
from collage.serve.decoder.normal_form import in_normal_form
from collage.serve.decoder.runner import DecoderRunner
from collage.serve.parallel.tensor_rank import ThreadRunner
from collage.serve.runner import Runner

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

    If segments within some error give logits with too much, they are compiled again within less, at last in float32.
    ``compile_at`` gets options whose tolerance is the largest error of each segment. ``error_of`` measures that of the
    logits; it gets whether that has to be explained by float32, and raises ModelError if it is not.
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
        log.warning("segments within %.2g give logits with an error of %.2g: again, within less", share, error)
        share *= _AIM * tolerance / error
    if rounds:
        log.warning("no placement in reduced precision is within %g; float32 remains", tolerance)
    parts = compile_at(replace(options, tolerance=0.0))
    return _told(parts, error_of(parts, True), tolerance)


def _told(parts: Parts, error: float, tolerance: float) -> tuple[CompiledDecoder, ...]:
    return tuple(replace(each, error=error, tolerance=tolerance) for each in parts)


_SAMPLES, _QUICK_SAMPLES = 9, 2
_CHECK_BLOCKS = 8 * MOST_REQUESTS


def compile_decoder(
    source: ModelSource, options: DecoderOptions, registry: Registry, progress: Callable[[Progress], None]
) -> CompiledDecoder:
    """Compile a decoder for serving: a model, its file, or a folder that has one.

    ``config.json`` beside the file names the number of positions, and the tokens that end an answer. Each segment is
    measured and placed for each bucket, the whole is compared with ONNX Runtime on the original model, and the time of
    an iteration is measured for each bucket. Raises ModelError for a model that cannot be served, which names the node,
    UsageError for options that do not fit each other, and what ``collage.compile`` raises.
    """

    def runner_of(parts: Sequence[CompiledDecoder]) -> DecoderRunner:
        return DecoderRunner(parts[0], registry, _check_blocks(parts[0]))

    (compiled,) = _checked(source, replace(options, processes=1), registry, progress, runner_of)
    progress(Progress("measure iterations", 0, 1, compiled.name))
    samples = _QUICK_SAMPLES if options.quick else _SAMPLES
    with closing(runner_of([compiled])) as runner:
        return with_costs(compiled, *measured_ms(runner, compiled.buckets, samples))


def compile_divided(
    source: ModelSource, options: DecoderOptions, registry: Registry, progress: Callable[[Progress], None]
) -> tuple[CompiledDecoder, ...]:
    """Compile a decoder for several processes with some heads and columns each: the part of each of them.

    The whole is compared with ONNX Runtime, and times are not measured. Raises what ``compile_decoder`` raises.
    """

    def runner_of(parts: Sequence[CompiledDecoder]) -> ThreadRunner:
        return ThreadRunner(parts, registry, _check_blocks(parts[0]))

    return _checked(source, options, registry, progress, runner_of)


def _checked(
    source: ModelSource,
    options: DecoderOptions,
    registry: Registry,
    progress: Callable[[Progress], None],
    runner_of: Callable[[Sequence[CompiledDecoder]], Runner],
) -> tuple[CompiledDecoder, ...]:
    check_options(options)
    config = DecoderConfig()
    if isinstance(source, (str, Path)):
        source = decoder_file(Path(source))
        config = read_config(source)
    model, name = in_normal_form(source), name_of(source) or "model"

    def compile_at(chosen: DecoderOptions) -> Sequence[CompiledDecoder]:
        return compile_parts(model, chosen, registry, progress, name, config)

    def error(parts: Sequence[CompiledDecoder], exact: bool) -> float:
        first = parts[0]
        progress(Progress("check", 0, 1, first.name))
        original = OriginalDecoder(model, first.threads)
        with closing(runner_of(parts)) as runner:
            return check(runner, original, first.name) if exact else error_of(runner, original)

    return within(options, compile_at, error)


def _check_blocks(compiled: CompiledDecoder) -> int:
    return min(_CHECK_BLOCKS, -(-compiled.max_length // BLOCK_TOKENS) * MOST_REQUESTS)
