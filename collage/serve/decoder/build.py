"""Compiling an ONNX decoder to one that was checked and measured."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

from collage.backends.registry import Registry
from collage.core.progress import Progress
from collage.frontend.load import ModelSource
from collage.serve.attention import BLOCK_TOKENS
from collage.serve.decoder.buckets import MOST_REQUESTS
from collage.serve.decoder.check import check
from collage.serve.decoder.compile import DecoderOptions, compile_parts, with_costs
from collage.serve.decoder.compiled import CompiledDecoder
from collage.serve.decoder.costs import measured_ms
from collage.serve.decoder.original import OriginalDecoder
from collage.serve.decoder.runner import DecoderRunner
from collage.serve.parallel.thread_runner import ThreadRunner

_SAMPLES, _QUICK_SAMPLES = 9, 2
_CHECK_BLOCKS = 8 * MOST_REQUESTS
"""The blocks of the cache with which the decoder is checked and measured."""


def compile_decoder(
    source: ModelSource, options: DecoderOptions, registry: Registry, progress: Callable[[Progress], None]
) -> CompiledDecoder:
    """Compile a decoder for serving.

    Each segment is measured and placed for each bucket, the whole is compared with ONNX Runtime on the original model,
    and the time of an iteration is measured for each bucket. Raises ModelError for a model that cannot be served, which
    names the node, and what ``collage.compile`` raises.
    """
    (compiled,) = compile_parts(source, replace(options, processes=1), registry, progress)
    most = -(-compiled.max_length // BLOCK_TOKENS) * MOST_REQUESTS
    runner = DecoderRunner(compiled, registry, min(_CHECK_BLOCKS, most))
    progress(Progress("check", 0, 1, compiled.name))
    check(runner, OriginalDecoder(source, compiled.threads), compiled.name)
    progress(Progress("measure iterations", 0, 1, compiled.name))
    samples = _QUICK_SAMPLES if options.quick else _SAMPLES
    costs = measured_ms(runner, compiled.buckets, samples)
    runner.close()
    return with_costs(compiled, costs)


def compile_divided(
    source: ModelSource, options: DecoderOptions, registry: Registry, progress: Callable[[Progress], None]
) -> tuple[CompiledDecoder, ...]:
    """Compile a decoder for several processes with some heads and columns each: the part of each of them.

    The whole is compared with ONNX Runtime, and times are not measured. Raises what ``compile_decoder`` raises.
    """
    parts = compile_parts(source, options, registry, progress)
    name = parts[0].name
    most = -(-parts[0].max_length // BLOCK_TOKENS) * MOST_REQUESTS
    progress(Progress("check", 0, 1, name))
    with closing(ThreadRunner(parts, registry, min(_CHECK_BLOCKS, most))) as runner:
        check(runner, OriginalDecoder(source, parts[0].threads), name)
    return parts
