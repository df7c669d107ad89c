"""The commands ``collage graphpipe plan``, ``simulate`` and ``show``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from collage.cli.console import print_json, print_table, say
from collage.cli.files import check_writable
from collage.cli.graphpipe_train import cluster, profile, run
from collage.cli.options import JSON_OPTION, PATH, Count, Seconds, flag, option

if TYPE_CHECKING:
    from collage.graphpipe.costs import Costs
    from collage.graphpipe.plan import Plan
    from collage.graphpipe.schedule import Actions

_ROUND, _ROUND_S, _WORTH = 8, 1.0, 0.95
"""What divides a rounder mini-batch, the seconds to plan one, and the relative time of a sample that is remarked on."""
_PLANNERS = ("graphpipe", "pipedream", "piper")
_GRAPH = click.argument("graph", metavar="GRAPH.json", type=PATH)
_PLAN = click.argument("plan_file", metavar="PLAN.json", type=PATH)
_CLUSTER = option(
    "--cluster",
    required=True,
    metavar="FILE.toml",
    type=PATH,
    help="Devices and links: devices, memory_gb, node_devices, and tables inner and outer with latency_us and "
    "bandwidth_gb_s.",
)
_GREEDY = flag("--greedy", help="Schedule by Algorithm 4, a backward pass whenever it costs no time, instead of kFkB.")


@click.group("graphpipe")
def graphpipe() -> None:
    """Plan training pipelines whose stages form a graph, and run them.

    \b
    collage graphpipe profile model.py:build -o graph.json
    collage graphpipe cluster --devices 2 -o cluster.toml
    collage graphpipe plan graph.json --cluster cluster.toml --batch 64 -o plan.json
    collage graphpipe simulate plan.json graph.json --cluster cluster.toml
    collage graphpipe show plan.json graph.json --cluster cluster.toml --svg pictures
    collage graphpipe run plan.json model.py:build --steps 100
    """


for _command in (profile, cluster, run):
    graphpipe.add_command(_command)


@graphpipe.command()
@_GRAPH
@_CLUSTER
@option("--batch", required=True, type=Count(min=1), metavar="B", help="Samples of a mini-batch.")
@option("-o", "--output", metavar="PLAN.json", type=PATH, help="The file to write.")
@option("--planner", "name", type=click.Choice(_PLANNERS), default=_PLANNERS[0], help="Whose planner.")
@flag("--compare", help="Say how long an iteration takes with the best chain of stages, PipeDream's.")
@option("--k", "ks", type=Count(min=1), multiple=True, default=(1,), metavar="K", help="kFkB schedules to choose from.")
@option(
    "--seconds",
    default=30.0,
    show_default=True,
    type=Seconds(),
    metavar="S",
    help="Processor time of a search; then the best plan so far is taken.",
)
@JSON_OPTION
def plan(
    graph: Path,
    cluster: Path,
    batch: int,
    output: Path | None,
    name: str,
    compare: bool,
    ks: tuple[int, ...],
    seconds: float,
    as_json: bool,
) -> None:
    """Choose stages, their micro-batches, devices and schedules.

    \b
    Examples:
      collage graphpipe plan graph.json --cluster cluster.toml --batch 64 -o plan.json
      collage graphpipe plan graph.json --cluster cluster.toml --batch 64 --compare
    """
    from collage.graphpipe.baselines import PLANNERS
    from collage.graphpipe.check import check
    from collage.graphpipe.graph import decompose, write_json
    from collage.graphpipe.planner import Options
    from collage.graphpipe.schedule import static_actions

    if output is not None:
        check_writable(output, (".json",))
    costs = _costs(graph, cluster, batch)
    options = Options(ks, seconds=seconds)
    found = PLANNERS[name](costs, options)
    best = found.best
    check(best, costs.graph, costs.cluster, static_actions(best))
    if output is not None:
        write_json(output, best.to_json())
    chain = PLANNERS["pipedream"](costs, options) if compare else None
    cores = [[costs.graph.blocks[at].name for at in core] for core in decompose(costs.graph).cores]
    result: dict[str, Any] = {
        "plan": best.to_json(),
        "iteration_s": found.iteration_s,
        "samples_per_s": batch / found.iteration_s,
        "depth": best.depth,
        "memory_bytes": best.memory(costs),
        "search_s": found.search_s,
        "late": found.late,
        "cores": cores,
    }
    if chain is not None:
        result["chain"] = {"iteration_s": chain.iteration_s, "depth": chain.best.depth, "plan": chain.best.to_json()}
    if as_json:
        print_json(result)
        return
    for core in cores:
        say(f"Not series-parallel, so kept in one stage: {', '.join(core)}.")
    _print(best, costs)
    idle = costs.cluster.devices - sum(len(each.devices) for each in best.stages)
    say(
        f"An iteration takes {found.iteration_s * 1e3:.4g} ms ({batch / found.iteration_s:.4g} samples/s) "
        f"at depth {best.depth}{f', {idle} devices idle' if idle else ''}; the search took {found.search_s:.2g} s."
    )
    if found.late:
        say(f"It is the best plan within {seconds:g} s; --seconds gives the search more time.")
    if remark := _rounder(costs, found.iteration_s / batch, ks):
        say(remark)
    if chain is not None:
        say(
            f"The best chain takes {chain.iteration_s * 1e3:.4g} ms at depth {chain.best.depth}: the graph is "
            f"{chain.iteration_s / found.iteration_s:.3g} times as fast."
        )


@graphpipe.command()
@_PLAN
@_GRAPH
@_CLUSTER
@_GREEDY
@JSON_OPTION
def simulate(plan_file: Path, graph: Path, cluster: Path, greedy: bool, as_json: bool) -> None:
    """Check a plan, and simulate an iteration of it."""
    from collage.graphpipe.simulate import simulated

    plan, costs, actions = _planned(plan_file, graph, cluster, greedy)
    found = simulated(plan, costs, actions)
    stages = [
        {
            "end_s": end,
            "busy": sum(each.end_s - each.start_s for each in spans) / found.iteration_s,
            "in_flight": count,
            "memory_bytes": costs.memory(stage.blocks, count, len(stage.devices)),
        }
        for stage, spans, end, count in zip(plan.stages, found.spans, found.ends_s, found.in_flight, strict=True)
    ]
    if as_json:
        samples = plan.mini_batch / found.iteration_s
        print_json({"iteration_s": found.iteration_s, "samples_per_s": samples, "stages": stages})
        return
    rows = [
        (str(at), *(f"{each[key] * scale:.4g}" for key, scale in (("end_s", 1e3), ("busy", 100), ("in_flight", 1))),
         f"{each['memory_bytes'] / 1e9:.3g}")
        for at, each in enumerate(stages)
    ]  # fmt: skip
    titles = ("stage", "end, ms", "busy, %", "in flight", "GB a device")
    print_table(titles, rows, right=titles[1:])
    say(f"An iteration takes {found.iteration_s * 1e3:.4g} ms, {plan.mini_batch / found.iteration_s:.4g} samples/s.")


@graphpipe.command()
@_PLAN
@_GRAPH
@_CLUSTER
@_GREEDY
@option("--svg", "folder", metavar="DIR", type=PATH, help="Write stages.svg and timeline.svg to this folder.")
def show(plan_file: Path, graph: Path, cluster: Path, greedy: bool, folder: Path | None) -> None:
    """Show a plan as a table, and as pictures of its stages and of its schedule with memory."""
    from collage.cli.files import make_folder
    from collage.core.new_file import new_file
    from collage.graphpipe.show import stages_svg, timeline_svg
    from collage.graphpipe.simulate import simulated

    plan, costs, actions = _planned(plan_file, graph, cluster, greedy)
    _print(plan, costs)
    if folder is None:
        return
    make_folder(folder)
    pictures = {
        "stages": stages_svg(plan, costs),
        "timeline": timeline_svg(plan, costs, simulated(plan, costs, actions)),
    }
    for name, picture in pictures.items():
        with new_file(folder / f"{name}.svg") as stream:
            stream.write(picture.encode())
        say(f"wrote {folder / name}.svg")


def _rounder(costs: Costs, sample_s: float, ks: tuple[int, ...]) -> str:
    """A remark if a mini-batch of about the same size that 8 divides takes less time a sample; else nothing."""
    from collage.graphpipe.baselines import pipedream
    from collage.graphpipe.planner import NoPlanError, Options

    batch = costs.mini_batch
    less = {}
    for near in (batch // _ROUND * _ROUND, -(-batch // _ROUND) * _ROUND):
        if near not in (0, batch):
            try:
                found = pipedream(replace(costs, mini_batch=near), Options(ks, seconds=_ROUND_S))
            except NoPlanError:
                continue
            if found.iteration_s / near < _WORTH * sample_s:
                less[near] = f"--batch {near} takes {found.iteration_s / near * 1e3:.3g} ms a sample at most"
    if not less:
        return ""
    most = costs.micro_batches[-1]
    return (
        f"Micro-batches are powers of 2 that divide the mini-batch: those of {batch} have {most} sample"
        f"{'s at most' * (most > 1)}, which take {sample_s * 1e3:.3g} ms each; {', '.join(less.values())}."
    )


def _costs(graph: Path, cluster: Path, batch: int) -> Costs:
    from collage.graphpipe.cluster import Cluster
    from collage.graphpipe.costs import Costs
    from collage.graphpipe.graph import BlockGraph, read_json

    return Costs(read_json(graph, BlockGraph.from_json), Cluster.read(cluster), batch)


def _planned(plan_file: Path, graph: Path, cluster: Path, greedy: bool) -> tuple[Plan, Costs, Sequence[Actions]]:
    """A plan with its costs and actions, checked. Raises CollageError."""
    from collage.graphpipe.check import check
    from collage.graphpipe.graph import read_json
    from collage.graphpipe.plan import Plan
    from collage.graphpipe.schedule import peak, static_actions
    from collage.graphpipe.simulate import greedy_actions

    plan = read_json(plan_file, Plan.from_json)
    costs = _costs(graph, cluster, plan.mini_batch)
    plan.check_network(costs.graph.names)
    check(plan, costs.graph, costs.cluster, static_actions(plan))
    if not greedy:
        return plan, costs, static_actions(plan)
    actions = greedy_actions(plan, costs)
    stages = zip(plan.stages, actions, strict=True)
    plan = replace(plan, stages=tuple(replace(stage, in_flight=peak(mine) * stage.b) for stage, mine in stages))
    check(plan, costs.graph, costs.cluster, actions)
    return plan, costs, actions


def _print(plan: Plan, costs: Costs) -> None:
    from collage.graphpipe.show import TITLES, stage_rows

    print_table(TITLES, [*stage_rows(plan, costs)], right=TITLES[2:8])
