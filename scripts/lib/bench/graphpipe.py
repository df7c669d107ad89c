"""The command ``scripts/bench graphpipe``."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import click

from collage.cli.options import parse_counts, parse_names
from collage.errors import CollageError
from collage.graphpipe import planner
from collage.graphpipe.baselines import PLANNERS, pipedream, piper
from collage.graphpipe.check import check
from collage.graphpipe.costs import Costs
from collage.graphpipe.exhaustive import best_plan, chain_layouts, graph_layouts, interval_layouts
from collage.graphpipe.plan import Plan
from collage.graphpipe.planner import NoPlanError, Options, pareto
from collage.graphpipe.schedule import static_actions
from collage.graphpipe.simulate import simulated
from scripts.lib import say
from scripts.lib.bench import common
from scripts.lib.bench.graphpipe_real import kills, real, sleep
from scripts.lib.graphpipe.networks import NETWORKS, Device, candle, case_study, problem
from scripts.lib.graphpipe.random_graphs import random_costs
from scripts.lib.json_file import write_json

_Found: TypeAlias = "dict[str, Any]"
_CHAINS = ("pipedream", "piper")
_SENSITIVITY = tuple((name, ratio) for name in ("compute", "links", "memory") for ratio in (0.7, 1.3))
_PARTS = ("random", "networks", "branches", "case", "sensitivity", "real", "sleep", "kills")


@click.command("graphpipe")
@click.option("--parts", type=parse_names, default=",".join(_PARTS), show_default=True, metavar="A,B")
@click.option("--networks", type=parse_names, default=",".join(NETWORKS), show_default=True, metavar="A,B")
@click.option("--devices", type=parse_counts, default="4,8,16,32", show_default=True, metavar="N,M")
@click.option("--graphs", type=click.IntRange(min=1), default=500, show_default=True, help="Random graphs.")
@click.option(
    "--seconds", type=float, default=60.0, show_default=True, help="Processor time of each search of Piper's."
)
@click.option("--json", "file", is_flag=False, flag_value="-", metavar="[FILE]", help="Write one JSON object.")
def command(
    *,
    parts: Sequence[str],
    networks: Sequence[str],
    devices: Sequence[int],
    graphs: int,
    seconds: float,
    file: str | None,
) -> None:
    """Compare GraphPipe's planner with enumeration, and with PipeDream's and Piper's planners.

    The parts: random series-parallel graphs against all plans, and both baselines against all chains; the networks of
    chapter 3 on V100s, simulated; CANDLE with 16 branches; the case study of §3.7.4; and the networks with compute,
    links and memory changed by 30 %. Costs are analytic: see scripts/lib/graphpipe/networks.py. Searches use one
    thread, and their seconds are the processor's. The last three parts need torch, and two idle cores: trainings on two
    processes, plans in sleep mode on 8 and 16, and ten kills of a process.

    \b
    Examples:
      scripts/bench graphpipe --json graphpipe.json
      scripts/bench graphpipe --parts networks --networks mmt --devices 8
    """
    about = common.head(1, piper_seconds=seconds, device=str(Device()))
    found: _Found = {**about, "random": {}, "networks": [], "branches": [], "case": {}, "sensitivity": []}
    found |= {"real": {}, "sleep": [], "kills": {}, "verdict": []}

    def save() -> None:
        found["verdict"] = [*_sentences(found)]
        if file not in (None, "-"):
            write_json(Path(str(file)), found)

    problems = {(name, count): problem(name, count) for name in networks for count in devices}
    if "random" in parts:
        found["random"] = _random(graphs)
        save()
    if "networks" in parts:
        for (name, count), costs in problems.items():
            say(f"{name} on {count} devices")
            found["networks"].append({"network": name, "devices": count, **_compared(costs, seconds)})
            save()
    if "branches" in parts:
        for count in devices:
            say(f"candle with 16 branches on {count} devices")
            batch = 1024 * count
            costs = Costs(candle(Device(), batch, 16), Device().cluster(count), batch)
            found["branches"].append({"network": "candle, 16 branches", "devices": count, **_compared(costs, 0)})
            save()
    if "case" in parts:
        found["case"] = _case()
        save()
    if "sensitivity" in parts:
        for name, count in problems:
            for key, ratio in _SENSITIVITY:
                say(f"{name} on {count} devices, {key} x {ratio}")
                cell = _compared(problem(name, count, Device().scaled(**{key: ratio})), 0)
                about_cell = {"network": name, "devices": count, "changed": key, "by": ratio}
                found["sensitivity"].append({**about_cell, "ratio": cell.get("ratio"), "failed": cell["failed"]})
                save()
    for name, run in (("real", real), ("sleep", sleep), ("kills", kills)):
        if name in parts:
            found[name] = run()
            save()
    common.show_results(found, _view(found), as_json=file == "-")


def _checked(plan: Plan, costs: Costs) -> None:
    """Raise CollageError if a plan breaks a condition, or has more samples in flight than it says."""
    check(plan, costs.graph, costs.cluster, static_actions(plan))
    counts = zip(simulated(plan, costs).in_flight, plan.stages, strict=True)
    if any(count > stage.in_flight for count, stage in counts):
        raise CollageError("the simulation has more samples in flight than the plan says.")


def _random(graphs: int) -> _Found:
    """Each planner against the enumeration of its plans; the largest ratio of the times per sample."""
    comparisons = {
        "graphpipe": (planner.plan, graph_layouts, False, 8, graphs),
        "pipedream": (pipedream, interval_layouts, True, 6, 200),
        "piper": (piper, chain_layouts, True, 6, 200),
    }
    found: _Found = {}
    for name, (search, layouts, chain, blocks, count) in comparisons.items():
        say(f"{name} on {count} random graphs")
        ratios, infeasible, wrong = [], 0, []
        for seed in range(count):
            costs = random_costs(random.Random(seed), blocks)
            expected = best_plan(costs, layouts, chain=chain)
            try:
                result = search(costs, Options(chain_s=0.0))
            except NoPlanError:
                result = None
            if expected is None or result is None:
                infeasible += 1
                if (expected is None) != (result is None):
                    wrong.append(f"seed {seed}: only one of planner and enumeration has a plan")
                continue
            try:
                for each in (result.least_tps, *(pair[0] for pair in result.plans)):
                    _checked(each, costs)
            except CollageError as error:
                wrong.append(f"seed {seed}: {error}")
            ratios.append(result.least_tps.tps(costs) / expected.tps(costs))
        over = sum(each > 1.01 for each in ratios)
        found[name] = {"graphs": count, "infeasible": infeasible, "wrong": wrong, "over_1_percent": over}
        found[name]["largest_ratio"] = max(ratios)
    return found


def _compared(costs: Costs, piper_seconds: float) -> _Found:
    """The simulated iterations of the planners' plans, and the seconds of their searches; Piper's if it gets some."""
    cell: _Found = {"mini_batch": costs.mini_batch, "planners": {}, "failed": {}}
    for name, search in PLANNERS.items():
        if name == "piper" and not piper_seconds:
            continue
        try:
            result = search(costs, Options(seconds=piper_seconds if name == "piper" else float("inf"), chain_s=0.0))
        except NoPlanError as error:
            cell["failed"][name] = str(error)
            continue
        _checked(result.best, costs)
        cell["planners"][name] = {
            "iteration_s": result.iteration_s,
            "depth": result.best.depth,
            "stages": len(result.best.stages),
            "tps_s": result.best.tps(costs),
            "memory_gb": result.best.memory(costs) / 1e9,
            "search_s": result.search_s,
            "states": result.states,
            "late": result.late,
            "pareto": len(pareto(result.plans, costs)),
        }
    mine = cell["planners"].get("graphpipe")
    chains = [cell["planners"][name] for name in _CHAINS if name in cell["planners"]]
    if mine and chains:
        cell["ratio"] = min(each["iteration_s"] for each in chains) / mine["iteration_s"]
        cell["search_ratio"] = cell["planners"]["pipedream"]["search_s"] / mine["search_s"]
    return cell


def _case() -> _Found:
    """The case study: a chain at b = 2, the graph at b = 2, and at b = 4, with the same stages."""
    found = {}
    for batch, half_tiles in ((32, 12), (64, 12), (128, 12), (32, 24), (64, 24), (128, 24)):
        costs = case_study(batch, Device(half_tiles=half_tiles))
        iterations: dict[str, _Found] = {}
        for name, search, b in (("chain, b=2", pipedream, 2), ("graph, b=2", planner.plan, 2),
                                ("chain, b=4", pipedream, 4), ("graph, b=4", planner.plan, 4)):  # fmt: skip
            try:
                result = search(costs, Options(micro_batches=(b,), chain_s=0.0))
            except NoPlanError as error:
                iterations[name] = {"failed": str(error)}
                continue
            best = result.best
            iterations[name] = {"iteration_s": result.iteration_s, "depth": best.depth, "stages": len(best.stages)}
        found[f"mini-batch {batch}, tiles cost 1 + {half_tiles} / their number"] = iterations
    return found


def _view(found: Mapping[str, Any]) -> Iterator[Any]:
    """Tables of all parts."""
    if found["random"]:
        rows = [
            (name, *(str(each[key]) for key in ("graphs", "infeasible", "over_1_percent")),
             f"{each['largest_ratio']:.4f}", str(len(each["wrong"])))
            for name, each in found["random"].items()
        ]  # fmt: skip
        yield common.table(("planner", "graphs", "infeasible", "over 1 %", "largest ratio", "wrong"), rows)
    cells = [*found["networks"], *found["branches"]]
    if cells:
        titles = (
            "network",
            "devices",
            "ms",
            "PipeDream",
            "Piper",
            "ratio",
            "depths",
            "search, s",
            "PipeDream",
            "ratio",
        )
        yield common.table(titles, map(_row, cells))
    yield from _sentences(found)


def _sentences(found: Mapping[str, Any]) -> Iterator[str]:
    """What the parts say, a line each."""
    for name, each in found["random"].items():
        yield (
            f"{name} on {each['graphs']} random graphs: at most {each['largest_ratio']:.4f} times the time per sample "
            f"of the best of all its plans; {len(each['wrong'])} plans break a condition"
        )
    for key in ("compute", "links", "memory"):
        ratios = [each.get("ratio") for each in found["sensitivity"] if each["changed"] == key]
        known = [each for each in ratios if each]
        if known:
            better = sum(each >= 0.9999 for each in known)
            yield f"{key} ± 30 %: ratios {min(known):.2f} to {max(known):.2f}, {better} of {len(ratios)} at least 1"
    for batch, iterations in found["case"].items():
        texts = (
            f"{name} {each['iteration_s'] * 1e3:.1f} ms (depth {each['depth']})"
            if "iteration_s" in each
            else name + " -"
            for name, each in iterations.items()
        )
        yield f"case study, {batch}: {', '.join(texts)}"
    if real := found["real"]:
        for name, each in real["contenders"].items():
            error = f", the simulation is {each['error']:+.1%} off" if "error" in each else ""
            yield f"{name}: {each['iteration_s'] * 1e3:.1f} ms an iteration{error}"
        yield (
            f"two branches: {real['share_of_copies']:.2f} of the throughput of two copies of one branch; "
            f"a chain takes {real['torch_over_ours']:.2f} times as long on torch.distributed.pipelining"
        )
    for each in found["sleep"]:
        yield f"{each['network']} on {each['devices']} devices, asleep: the simulation is {each['error']:+.1%} off"
    if cut := found["kills"]:
        yield (
            f"{cut['kills']} kills: the others ended within {max(cut['seconds']):.2f} s, and training went on from "
            f"step {cut['steps']} with losses {cut['largest_difference']:.1e} off"
        )
    for each in (*found["networks"], *found["branches"]):
        yield from (f"{each['network']} on {each['devices']}: {why}" for why in each["failed"].values())


def _row(cell: Mapping[str, Any]) -> tuple[str, ...]:
    of = cell["planners"]
    late = {name: "*" if name in of and of[name]["late"] else "" for name in PLANNERS}
    times = [f"{of[name]['iteration_s'] * 1e3:.1f}{late[name]}" if name in of else "-" for name in PLANNERS]
    depths = "/".join(str(of[name]["depth"]) if name in of else "-" for name in PLANNERS)
    ratio, search = (f"{cell[key]:.2f}" if key in cell else "-" for key in ("ratio", "search_ratio"))
    seconds = [f"{of[name]['search_s']:.2f}" if name in of else "-" for name in ("graphpipe", "pipedream")]
    return (cell["network"], str(cell["devices"]), *times, ratio, depths, *seconds, search)
