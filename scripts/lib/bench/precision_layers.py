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
@click.option("--in-8-bits", is_flag=True, help="Compare kernels in 8 bits, too, also on values stored so.")
def command(model: Path, threads: int, seconds: float, only: str, every: bool, in_8_bits: bool) -> None:
    """Compare float32 kernels with those that compute in bfloat16 on the layers of a model.

    Each distinct convolution and matrix product is taken with what Collage's kernels and oneDNN's can do after it. All
    variants take turns in one process, on Collage's team of threads, with weights that come from memory as they do in a
    network. Times are in microseconds, the 15th percentile of the rounds. The ratios are those of the best float32 time
    to the best one in fewer bits. The sums say what a network could gain at most, before layout transforms and other
    operators; a layer without a kernel in fewer bits counts with its best one in more.

    \b
    Examples:
      scripts/bench precision-layers models/resnet50.onnx
      scripts/bench precision-layers models/resnet50.onnx --only conv --in-8-bits
      scripts/bench precision-layers models/bert_base.onnx --only matmul
    """
    from collage.errors import CollageError
    from collage.frontend.model import import_model
    from collage.graph.storage import BF16, INT8, STORED_INT8
    from scripts.lib.kernels.layers import BACKENDS, best_by_precision, layers, race

    for backend in BACKENDS:
        if not backend.available():
            raise CollageError(f"{backend.name} is not available: {backend.available().reason}")
    reduced = (BF16, INT8, STORED_INT8) if in_8_bits else (BF16,)
    sums = dict.fromkeys(("", *reduced), 0.0)
    fastest_sum = 0.0
    allowed = frozenset(reduced)
    for layer in layers(import_model(model), allowed):
        if only not in layer.name:
            continue
        us = race(layer, threads, seconds, cold=True, precisions=allowed)
        best = best_by_precision(us, reduced)
        say(f"{layer.count} x {layer.name}")
        for time_us, name in sorted((t, n) for n, t in us.items()) if every else best.values():
            say(f"    {time_us:9.1f}  {name}")
        known = best[""][0]
        fastest_sum += layer.count * min(time_us for time_us, _ in best.values())
        for precision in sums:
            if precision in best:
                known = best[precision][0]
                if precision:
                    say(f"    {best[''][0] / known:9.2f}  ratio in {precision}")
            sums[precision] += layer.count * known
    parts = [f"{precision or 'float32'}: {us / 1e3:.3f} ms" for precision, us in sums.items()]
    say(f"sum of {', '.join(parts)}, the fastest one: {fastest_sum / 1e3:.3f} ms")
    if fastest_sum:
        say(f"{sums[''] / fastest_sum:.2f} times as fast at most")
