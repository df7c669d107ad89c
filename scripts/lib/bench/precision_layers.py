"""The command ``scripts/bench precision-layers``."""

from __future__ import annotations

from pathlib import Path

import click

from collage.cli.console import say
from collage.cli.options import MODEL_ARGUMENT
from scripts.lib.bench.options import only_option, seconds_option


@click.command("precision-layers")
@MODEL_ARGUMENT
@click.option("--threads", type=click.IntRange(min=1), default=2, show_default=True, metavar="N")
@seconds_option(0.5, "Measuring time of a layer.")
@only_option("layers")
@click.option("--all", "every", is_flag=True, help="Print every variant.")
def command(model: Path, threads: int, seconds: float, only: str, every: bool) -> None:
    """Compare float32 kernels with those that compute in bfloat16 on the layers of a model.

    Each distinct convolution and matrix product is taken with what Collage's kernels and oneDNN's can do after it. All
    variants take turns in one process, on Collage's team of threads, with weights that come from memory as they do in a
    network. Times are in microseconds, the 15th percentile of the rounds. The ratio is the best float32 time over the
    best reduced one. The sums say what a network could gain at most, before layout transforms and other operators.

    \b
    Examples:
      scripts/bench precision-layers models/resnet50.onnx
      scripts/bench precision-layers models/bert_base.onnx --only matmul
    """
    from collage.errors import CollageError
    from collage.frontend.model import import_model
    from collage.graph.storage import BF16
    from collage.kernel.target import reduced_precisions
    from scripts.lib.kernels.layers import BACKENDS, layers, race

    for backend in BACKENDS:
        if not backend.available():
            raise CollageError(f"{backend.name} is not available: {backend.available().reason}")
    if BF16 not in reduced_precisions():
        raise CollageError("this processor has no instructions for bfloat16 (AVX512-BF16 or AMX).")
    sums = {"float32": 0.0, "bf16": 0.0, "the faster one": 0.0}
    allowed = frozenset({BF16})
    for layer in layers(import_model(model), allowed):
        if only not in layer.name:
            continue
        us = race(layer, threads, seconds, cold=True, precisions=allowed)
        exact, reduced = (
            min((t, n) for n, t in us.items() if n.endswith(f"; {BF16}") == narrow)
            for narrow in (False, True)
        )
        for name, found in zip(sums, (exact[0], reduced[0], min(exact[0], reduced[0])), strict=True):
            sums[name] += layer.count * found
        say(f"{layer.count} x {layer.name}")
        for time_us, name in sorted((t, n) for n, t in us.items()) if every else (exact, reduced):
            say(f"    {time_us:9.1f}  {name}")
        say(f"    {exact[0] / reduced[0]:9.2f}  ratio")
    say("sum of " + ", ".join(f"{name}: {us / 1e3:.3f} ms" for name, us in sums.items()))
    if sums["the faster one"]:
        say(f"{sums['float32'] / sums['the faster one']:.2f} times as fast at most")
