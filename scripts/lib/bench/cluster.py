"""The command ``scripts/bench cluster``."""

from __future__ import annotations

from typing import Any

import click

from collage.cli.console import print_json, say
from collage.cli.options import JSON_OPTION, THREADS_OPTION
from scripts.lib.bench.options import Models, takes_models

_SIMULATED = (1, 2, 4, 8, 16, 32, 64)


def _counts(text: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(each) for each in text.split(","))
    except ValueError:
        counts = ()
    if not counts or min(counts) < 1:
        raise click.BadParameter(f"{text!r} is no list of numbers; write 1,2,4.")
    return counts


@click.command("cluster")
@takes_models
@click.option(
    "--workers",
    type=_counts,
    default="1,2,4",
    show_default=True,
    metavar="N,N",
    help="Numbers of workers on this machine.",
)
@click.option("--candidates", type=click.IntRange(min=1), default=48, show_default=True, metavar="N")
@click.option(
    "--sleep",
    type=click.FloatRange(min=0),
    default=1.5,
    show_default=True,
    metavar="S",
    help="Seconds that each made-up candidate sleeps.",
)
@THREADS_OPTION
@JSON_OPTION
def command(
    *,
    models: Models,
    workers: tuple[int, ...],
    candidates: int,
    sleep: float,
    threads: int | None,
    as_json: bool,
) -> None:
    """Tell how measuring scales with the workers of a Ray cluster.

    Made-up candidates that sleep are measured without a cluster, and with so many workers on this machine. The speed-up
    is against one worker, whose start is not counted. Each MODEL is compiled without a cluster and with one that is
    this machine, on new databases. Then the model's jobs are simulated on up to 64 nodes, with the costs that were
    measured before, and a network of 1 Gbit/s. This needs the extra `cluster`.

    \b
    Examples:
      scripts/bench cluster
      scripts/bench cluster resnet50.onnx --json
    """
    from collage.kernel.target import usable_cores
    from scripts.lib.studies import cluster
    from scripts.lib.studies.cluster_simulation import JobTime, bounds, simulate

    runs = cluster.sleepers(workers, candidates, sleep)
    found: dict[str, Any] = {"candidates": candidates, "sleep_s": sleep, "runs": runs, "models": []}
    for path in models.find() if models.models else ():
        both = cluster.compile_both(path, threads or usable_cores())
        jobs = [JobTime(**job) for job in both["jobs"]]
        costs = cluster.measured_costs(runs, both["model_bytes"])
        simulated = [vars(simulate(jobs, count, costs)) for count in _SIMULATED]
        longest_s, driver_s = bounds(jobs, costs)
        more = {"costs": vars(costs), "simulated": simulated, "longest_s": longest_s, "driver_s": driver_s}
        found["models"].append({**both, **more})
    if as_json:
        print_json(found)
        return
    for each in runs:
        who = f"{each['workers']} workers" if each["workers"] else "without a cluster"
        more_text = (
            f", start {each['start_s']:.1f} s, {each['job_ms']:.1f} ms for an empty job"
            if each["workers"]
            else ""
        )
        say(f"{who}: {each['seconds']:.1f} s, speed-up {each['speedup']:.2f}{more_text}")
    for model in found["models"]:
        say(
            f"{model['model']}: {model['here_s']:.0f} s without a cluster, {model['cluster_s']:.0f} s with one worker; "
            f"{model['same_regions']} of {model['regions']} regions are the same; "
            f"{model['here_us']:.0f} and {model['cluster_us']:.0f} us"
        )
        first = model["simulated"][0]["seconds"]
        for each in model["simulated"]:
            say(
                f"  {each['workers']} nodes: {each['seconds']:.1f} s, speed-up {first / each['seconds']:.1f}, workers "
                f"busy {each['workers_busy']:.0%}, driver busy {each['driver_busy']:.1%}"
            )
        say(f"  bounds: start and longest job {model['longest_s']:.1f} s, driver {model['driver_s']:.1f} s")
