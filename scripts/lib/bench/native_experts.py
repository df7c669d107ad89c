"""The command ``scripts/bench native-experts``."""

from __future__ import annotations

import click

from collage.cli.console import say
from scripts.lib.bench.options import seconds_option


@click.command("native-experts")
@click.option("--threads", type=click.IntRange(min=1), default=2, show_default=True, metavar="N")
@seconds_option(10, "Measuring time.")
@click.option("--experts", type=click.IntRange(min=1), default=32, show_default=True, metavar="E")
@click.option("--chosen", type=click.IntRange(min=1), default=4, show_default=True, metavar="C")
@click.option("--depth", type=click.IntRange(min=1), default=768, show_default=True, metavar="K")
@click.option("--columns", type=click.IntRange(min=1), default=2048, show_default=True, metavar="N")
@click.option("--tokens", type=click.IntRange(min=1), default=1, show_default=True, metavar="T")
def command(
    threads: int, seconds: float, experts: int, chosen: int, depth: int, columns: int, tokens: int
) -> None:
    """Compare our products of experts with weights in float32, in bfloat16 and in 8 bits.

    Each of some tokens chooses C of E matrices of K x N, other ones in each call, so that weights come from memory. All
    variants of all precisions take turns in one process, on Collage's team of threads. Times are medians, and ratios
    medians over the rounds: above 1, a precision is faster than float32. Errors are the largest ones, as shares of the
    largest result.

    \b
    Examples:
      scripts/bench native-experts
      scripts/bench native-experts --columns 256 --tokens 64
    """
    from collage.backends.native import Native
    from collage.errors import CollageError, UsageError
    from scripts.lib.kernels.experts import Mixture, race

    if not Native().available():
        raise CollageError(f"native is not available: {Native().available().reason}")
    if chosen > experts:
        raise UsageError(f"a token cannot choose {chosen} of {experts} experts")
    say(f"{threads} thread(s), {tokens} token(s), {chosen} of {experts} matrices of {depth} x {columns}")
    say(f"{'weights':10}{'median us':>10}{'GB/s':>8}{'ratio':>8}{'error':>10}  variant")
    for each in race(Mixture(experts, chosen, depth, columns, tokens), threads, seconds):
        say(
            f"{each.precision:10}{each.us:10.1f}{each.gbs:8.1f}{each.ratio:8.2f}{each.error:10.1e}  {each.variant}"
        )
