"""The command ``scripts/bench constants``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from collage.cli.console import print_json, say
from collage.cli.options import JSON_OPTION
from scripts.lib.bench.options import Models, only_option, seconds_option, takes_models

if TYPE_CHECKING:
    from collage.kernel.machine_speeds import MachineSpeeds
    from scripts.lib.kernels.plans import Made, Planned

WRITTEN, MEASURED = "written", "measured"
_SPEEDS_S = 2.0
"""The time for the machine's speeds, in units of the time for a layer."""


@click.command("constants")
@takes_models
@click.option("--threads", type=click.IntRange(min=1), default=2, show_default=True, metavar="N")
@seconds_option(1.0, "Measuring time of a layer.")
@only_option("layers")
@click.option("--hot", is_flag=True, help="Leave the weights in the caches; otherwise they come from memory.")
@click.option(
    "--all", "every", is_flag=True, help="Also run layers for which both plans have the same kernels."
)
@JSON_OPTION
def command(
    *, models: Models, threads: int, seconds: float, only: str, hot: bool, every: bool, as_json: bool
) -> None:
    """Compare kernels planned for this machine with those planned for the one they were written on.

    The speeds of this machine are measured first. Each distinct convolution and matrix product of the models (by
    default ResNeXt50 and BERT-base) is then planned twice: with the numbers that are written down, and with the
    measured ones. All kernels of both plans and oneDNN's take turns in one process, and the fastest of each plan
    counts, as it would in a compile. The ratio is the written plan's time over the measured one's: above 1,
    measuring helps. Layers for which both have the same kernels cannot differ; they are run only with --all, which also
    tells the share of the peak of our matrix product that each plan has over all layers.

    \b
    Examples:
      scripts/bench constants
      scripts/bench constants resnext50_32x4d --all
      scripts/bench constants model.onnx --hot --json
    """
    from collage.errors import CollageError
    from collage.frontend.model import import_model
    from collage.kernel.machine_speeds import WRITTEN_DOWN
    from collage.measure_db.measure_speeds import measure_speeds
    from scripts.lib.kernels.layers import BACKENDS, layers
    from scripts.lib.kernels.plans import planned

    for backend in BACKENDS:
        if not backend.available():
            raise CollageError(f"{backend.name} is not available: {backend.available().reason}")
    speeds = measure_speeds(threads, _SPEEDS_S * seconds).speeds
    if not speeds.measured:
        raise CollageError(
            "the speeds of this machine cannot be measured: install Collage again with a compiler."
        )
    plans = {WRITTEN: WRITTEN_DOWN, MEASURED: speeds}
    if not as_json:
        say(f"measured: {_words(speeds)}")
        say(f"written:  {_words(WRITTEN_DOWN)}")
    results = []
    for path in models.find(("resnext50_32x4d", "bert_base")):
        rows, same = [], 0
        for layer in layers(import_model(path)):
            if only in layer.name:
                found = planned(layer, plans, threads)
                if every or found.differ:
                    rows.append(_row(found, found.race(seconds, cold=not hot)))
                else:
                    same += layer.count
        results.append(_summary(path.stem, rows, same, speeds, every))
        if not as_json:
            _show(results[-1])
    if as_json:
        print_json({"threads": threads, "speeds": asdict(speeds), "models": results})


def _row(found: Planned, us: Mapping[Made, float]) -> dict[str, Any]:
    """A layer as JSON, with the fastest kernel of each plan, which is the one that measuring would find."""
    best = {plan: min(kernels, key=lambda made: us[made]) for plan, kernels in found.kernels.items()}
    return {
        "layer": found.layer.name,
        "count": found.layer.count,
        "flop": found.flop,
        "us": {plan: us[made] for plan, made in best.items()},
        "kernel": {plan: str(made) for plan, made in best.items()},
        "differ": found.differ,
        "ratio": us[best[WRITTEN]] / us[best[MEASURED]],
        "kernels": {plan: len(each) for plan, each in found.kernels.items()},
    }


def _summary(
    model: str, rows: list[dict[str, Any]], same: int, speeds: MachineSpeeds, every: bool
) -> dict[str, Any]:
    """A model as JSON; shares of the peak only where all its layers were run."""
    ms = {plan: sum(row["count"] * row["us"][plan] for row in rows) / 1e3 for plan in (WRITTEN, MEASURED)}
    flop = sum(row["count"] * row["flop"] for row in rows)
    peak = speeds.team_gemm_gflops
    share = {plan: flop / (1e6 * took * peak) for plan, took in ms.items()} if every and rows else {}
    return {"model": model, "layers": rows, "same_plan": same, "ms": ms, "share_of_peak": share}


def _show(model: dict[str, Any]) -> None:
    say(model["model"])
    for row in model["layers"]:
        us = row["us"]
        say(f"  {row['count']} x {row['layer']}")
        for plan in (WRITTEN, MEASURED):
            say(f"    {us[plan]:9.1f} us  {plan}: {row['kernel'][plan]} of {row['kernels'][plan]}")
        say(f"    {row['ratio']:9.3f}  ratio" + ("" if row["differ"] else ", the same kernels"))
    ms = model["ms"]
    say(f"  {model['same_plan']} layers have the same kernels in both plans and were not run")
    say("  sum of the others: " + ", ".join(f"{plan} {took:.3f} ms" for plan, took in ms.items()))
    if model["share_of_peak"]:
        shares = ", ".join(f"{plan} {100 * share:.0f} %" for plan, share in model["share_of_peak"].items())
        say(f"  share of the peak of our product: {shares}")


def _words(speeds: MachineSpeeds) -> str:
    """The speeds that plans depend on."""
    return (
        f"{speeds.gemm_gflops:g} GFLOP/s on a thread, {speeds.team_gemm_gflops:g} on all, last cache "
        f"{speeds.last_cache.read_gbs:g} GB/s, memory {speeds.memory.team_read_gbs:g} GB/s, Winograd's transforms "
        f"{speeds.winograd_ns:g} ns, own cache {speeds.own_cache_bytes >> 10} KiB, "
        f"blocks {str(speeds.blocking) or 'as written'}"
    )
