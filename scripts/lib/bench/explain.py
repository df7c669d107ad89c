"""The command ``scripts/bench explain``: whether other choices cost what ``collage show --explain`` says."""

from __future__ import annotations

import random
import statistics
from collections.abc import Generator
from pathlib import Path
from typing import Any

import click

import collage
from collage.cli.console import print_json, print_table
from collage.compiler import compile as compiling
from collage.compiler.bench import Bench
from collage.compiler.best import Best
from collage.compiler.plan import Placed, Plan, Verdict
from collage.compiler.propose.mixes import calibrated, mix_of, planned
from collage.compiler.referee import Referee
from collage.compiler.stages import USUAL, Stage
from collage.compiler.verdicts import Losses
from collage.errors import CollageError
from collage.measure.timing.interleave import Pace
from collage.measure_db.results import Measurement
from collage.search.placement import finish

_STAGES = "engines", "first mix", "promising", "everything"
"""What finds a mix; verdicts are about its kernels, not about streams, engines or merges."""
_LEAST = 0.01
"""Choices that cost a smaller share of the mix's time are within the noise of a race."""


@click.command("explain")
@click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--choices", default=10, show_default=True, help="Number of choices that are forced.")
@click.option("--budget", default=120.0, show_default=True, help="Seconds of the compile.")
@click.option("--db", type=click.Path(path_type=Path), help="Database of measurements. Default: yours.")
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(model: Path, choices: int, budget: float, db: Path | None, seed: int, as_json: bool) -> None:
    """Force other choices into the mix of a model, one at a time, and compare what the whole takes with what is said.

    The mix and those with a forced choice race by turns. Choices are drawn from those that are said to cost a hundredth
    of the mix's time or more.
    """
    found: list[dict[str, Any]] = []

    def forced(bench: Bench, best: Best) -> Generator[Plan, Verdict, None]:
        found.extend(_forced(bench, best, choices, seed))
        yield from ()

    kept = [each for each in USUAL if each.name in _STAGES]
    vars(compiling)["USUAL"] = (*kept, Stage("calibrated", calibrated), Stage("forced choices", forced))
    collage.compile(model, budget_s=budget, db=db, streams=False)
    if not found:
        raise CollageError(
            f"{model.name}: no choice costs {_LEAST:.0%} of the mix or more, or the budget was too short."
        )
    off = [abs(each["forced_us"] / each["said_us"] - 1) for each in found]
    result = {"model": model.stem, "choices": found, "largest_error": max(off), "median_error": statistics.median(off)}
    if as_json:
        print_json(result)
        return
    titles = "nodes", "instead", "mix us", "said us", "forced us", "off"
    rows = [
        (
            *(each["nodes"], each["backend"]),
            *(f"{each[name]:.0f}" for name in ("mix_us", "said_us", "forced_us")),
            f"{each['forced_us'] / each['said_us'] - 1:+.1%}",
        )
        for each in found
    ]
    print_table(titles, rows, right=titles[2:])


def _forced(bench: Bench, best: Best, choices: int, seed: int) -> list[dict[str, Any]]:
    mix = mix_of(best)
    if mix is None:
        return []
    referee, known = Referee(bench), bench.known
    mix = known.timed(mix)
    losses = Losses(bench, best, mix)
    whole_us = mix.placement.predicted_us
    exchanges = {
        offer.request: exchange
        for offer in known.offers
        if isinstance(known.outcomes.get(offer.request), Measurement)
        and offer.request.backend not in known.left_out
        and (exchange := losses.exchange(offer.request)) is not None
        and exchange.total_us >= _LEAST * whole_us
    }
    chosen = random.Random(seed).sample([*exchanges], min(choices, len(exchanges)))
    costs = known.costs.expected_transforms(known.transforms_us)
    plans: dict[Placed, Any] = {}
    for request in chosen:
        exchange = exchanges[request]
        gone = {each.nodes for each in exchange.replaced}
        kernels = [*(each for each in mix.placement.candidates if each.nodes not in gone), *exchange.kernels]
        placement = finish(bench.model.graph, kernels, known.epsilon_us, transforms_us=costs)
        plans[planned(bench, placement)] = request
    click.echo(f"bench: {len(plans)} of {len(exchanges)} choices beside a mix of {whole_us:.0f} us", err=True)
    timings = referee.race([mix, *plans], Pace(rounds=40, least=40, limit_s=600.0), f" forced {seed}")
    mix_us = timings[mix].median_us
    return [
        {
            "nodes": ", ".join(bench.model.describe_node(node) for node in request.nodes[:3]),
            "backend": request.backend,
            "mix_us": mix_us,
            "said_us": mix_us * (1 + exchanges[request].total_us / whole_us),
            "forced_us": timings[plan].median_us,
        }
        for plan, request in plans.items()
    ]
