"""The command ``scripts/bench native-layers``."""

from __future__ import annotations

from pathlib import Path

import click

from collage.cli.console import say
from collage.cli.options import MODEL_ARGUMENT
from scripts.lib.bench.options import only_option, seconds_option


@click.command("native-layers")
@MODEL_ARGUMENT
@click.option("--threads", type=click.IntRange(min=1), default=2, show_default=True, metavar="N")
@seconds_option(0.5, "Measuring time of a layer.")
@only_option("layers")
@click.option(
    "--cold", is_flag=True, help="Read the weights from memory, as a layer inside its network does."
)
@click.option("--all", "every", is_flag=True, help="Print every variant.")
def command(model: Path, threads: int, seconds: float, only: str, cold: bool, every: bool) -> None:
    """Compare Collage's own kernels with oneDNN's on the layers of a model.

    Each distinct convolution and matrix product is taken with what both can do after it. All variants of both, on
    Collage's team of threads, take turns in one process. Times are in microseconds, the 15th percentile of the
    rounds, since other processes only ever add. The ratio is oneDNN's best over our best: above 1, ours is faster.

    \b
    Examples:
      scripts/bench native-layers models/resnext50_32x4d.onnx
      scripts/bench native-layers models/bert_base.onnx --cold --only matmul
    """
    from collage.errors import CollageError
    from collage.frontend.model import import_model
    from scripts.lib.kernels.layers import BACKENDS, layers, race

    for backend in BACKENDS:
        if not backend.available():
            raise CollageError(f"{backend.name} is not available: {backend.available().reason}")
    sums = dict.fromkeys((*(each.name for each in BACKENDS), "both"), 0.0)
    for layer in layers(import_model(model)):
        if only not in layer.name:
            continue
        us = race(layer, threads, seconds, cold=cold)
        best = {b.name: min((t, n) for n, t in us.items() if n.startswith(f"{b.name}:")) for b in BACKENDS}
        for name, (time_us, _) in best.items():
            sums[name] += layer.count * time_us
        sums["both"] += layer.count * min(best.values())[0]
        say(f"{layer.count} x {layer.name}")
        for time_us, name in sorted((t, n) for n, t in us.items()) if every else best.values():
            say(f"    {time_us:9.1f}  {name}")
        say(f"    {best['onednn'][0] / best['native'][0]:9.2f}  ratio")
    say("sum of " + ", ".join(f"{name}: {us / 1e3:.3f} ms" for name, us in sums.items()))
