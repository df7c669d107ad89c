"""Runs of several processes beside their simulations: the parts ``real``, ``sleep`` and ``kills``."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from collage.errors import CollageError
from collage.graphpipe import planner
from collage.graphpipe.cluster import Cluster
from collage.graphpipe.costs import Costs
from collage.graphpipe.graph import BlockGraph, read_json, write_json
from collage.graphpipe.plan import Plan, Stage, scheduled
from scripts.lib import ROOT, say
from scripts.lib.graphpipe.networks import Device, problem

_Found: TypeAlias = "dict[str, Any]"
_MODEL = ROOT / "scripts" / "lib" / "graphpipe" / "small.py"
_BATCH, _MICRO_BATCH, _K, _STEPS, _ROUNDS, _KILLS = 512, 32, 2, 10, 5, 10
_SLEEPS = tuple((name, devices) for name in ("six", "candle", "mmt") for devices in (8, 16))


def _started(*words: str | Path) -> subprocess.Popen[str]:
    """A ``collage graphpipe`` command on one thread a process."""
    command = [sys.executable, "-m", "collage", "graphpipe", *map(str, words)]
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def _ended(process: subprocess.Popen[str]) -> str:
    """What a command prints. Raises CollageError if it fails."""
    out, err = process.communicate()
    if process.returncode:
        raise CollageError(err.strip() or f"a command ended with {process.returncode}")
    return out


def _run(*words: str | Path) -> _Found:
    found: _Found = json.loads(_ended(_started("run", *words, "--json")))
    return found


def real() -> _Found:
    """Two branches on two processes, beside the simulation and beside two copies of one branch at the same time.

    And a chain, beside torch.distributed.pipelining. Contenders take turns; ratios are of each round.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cluster = folder / "cluster.toml"
        _ended(_started("cluster", "--devices", "2", "-o", cluster))
        plans = {}
        for network in ("two", "one", "chain"):
            say(f"profile of {network}")
            graph = folder / f"{network}.json"
            _ended(_started("profile", f"{_MODEL}:{network}", "-o", graph, "--most", str(_MICRO_BATCH)))
            plans[network] = _two_stages(read_json(graph, BlockGraph.from_json), network)
            write_json(folder / f"{network}-plan.json", plans[network].to_json())
        contenders: Mapping[str, Callable[[], Sequence[_Found]]] = {
            "two branches": lambda: [_trained(folder, "two")],
            "two copies of one branch": lambda: _copies(folder),
            "chain": lambda: [_trained(folder, "chain")],
            "chain on torch.distributed.pipelining": lambda: [_trained(folder, "chain", "--torch")],
        }
        rounds: list[dict[str, Sequence[_Found]]] = []
        for number in range(_ROUNDS):
            say(f"round {number + 1} of {_ROUNDS}")
            rounds.append({name: run() for name, run in contenders.items()})
    times = {name: [max(each["iteration_s"] for each in found[name]) for found in rounds] for name in contenders}
    found = {name: {"iteration_s": median(each), "rounds": each} for name, each in times.items()}
    for name in ("two branches", "two copies of one branch", "chain"):
        predicted = rounds[0][name][0]["predicted_s"]
        found[name] |= {"predicted_s": predicted, "error": median(predicted / each - 1 for each in times[name])}

    def ratio(one: str, other: str) -> float:
        return float(median(a / b for a, b in zip(times[one], times[other], strict=True)))

    return {
        "contenders": found,
        "share_of_copies": ratio("two copies of one branch", "two branches"),
        "torch_over_ours": ratio("chain on torch.distributed.pipelining", "chain"),
    }


def _two_stages(graph: BlockGraph, network: str) -> Plan:
    """All blocks of ``one`` on one device; a stage for each branch, the second one with the head, or for each half."""
    blocks = [*range(len(graph.blocks))]
    if network == "one":
        return scheduled(Plan(_BATCH, (Stage(tuple(blocks), _MICRO_BATCH, (0,), _K, 0),), ()))
    first = [at for at in blocks if graph.blocks[at].name.startswith("branches.0")]
    first = first or blocks[: len(blocks) // 2]
    parts = (first, [at for at in blocks if at not in first])
    stages = (Stage(tuple(part), _MICRO_BATCH, (at,), _K, 0) for at, part in enumerate(parts))
    return scheduled(Plan(_BATCH, tuple(stages), ((0, 1),)))


def _words(folder: Path, network: str, *words: str) -> Sequence[str | Path]:
    graph, cluster = folder / f"{network}.json", folder / "cluster.toml"
    plan = folder / f"{network}-plan.json"
    return [plan, f"{_MODEL}:{network}", "--steps", str(_STEPS), "--graph", graph, "--cluster", cluster, *words]


def _trained(folder: Path, network: str, *words: str) -> _Found:
    return _run(*_words(folder, network, *words))


def _copies(folder: Path) -> Sequence[_Found]:
    """Two processes at the same time, each with a branch of its own and all samples."""
    both = [_started("run", *_words(folder, "one"), "--json") for _ in range(2)]
    return [json.loads(_ended(each)) for each in both]


def sleep() -> Sequence[_Found]:
    """Plans for 8 and 16 devices in sleep mode beside their simulations: six branches of small.py, and the chapter's.

    The messages of all devices are those of this machine, and the chapter's are large.
    """
    found = []
    for network, devices in _SLEEPS:
        say(f"{network} on {devices} devices, in sleep mode")
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            graph, plan, cluster = (folder / each for each in ("graph.json", "plan.json", "cluster.toml"))
            if network == "six":
                _ended(_started("profile", f"{_MODEL}:six", "-o", graph, "--most", "32"))
                costs = Costs(read_json(graph, BlockGraph.from_json), Device().cluster(devices), 128)
            else:
                costs = problem(network, devices)
            best = planner.plan(costs, planner.Options(seconds=30.0)).best
            write_json(graph, costs.graph.to_json())
            write_json(plan, best.to_json())
            cluster.write_text(_local(devices, costs))
            run = _run(plan, "--sleep", "--graph", graph, "--cluster", cluster, "--steps", "4", "--limit", "120")
        keys = ("iteration_s", "predicted_s", "sleep_factor")
        error = run["predicted_s"] / run["iteration_s"] - 1
        found.append({"network": network, "devices": devices, **{key: run[key] for key in keys}, "error": error})
    return found


def _local(devices: int, costs: Costs) -> str:
    """The cluster of processes on this machine, with the memory of the plan's devices."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name, "cluster.toml")
        _ended(_started("cluster", "--devices", str(devices), "-o", file))
        link = Cluster.read(file).inner
    latency, bandwidth = link.latency_s * 1e6, link.bandwidth / 1e9
    return (
        f"devices = {devices}\nmemory_gb = {costs.cluster.memory_bytes / 1e9}\n"
        f"[inner]\nlatency_us = {latency:.3f}\nbandwidth_gb_s = {bandwidth:.3f}\n"
    )


def kills() -> _Found:
    """Ranks that are killed at random moments of a training of two branches, which resumes after each of them."""
    draws, seconds, lines = random.Random(0), [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        graph, plan, kept = (folder / each for each in ("two.json", "plan.json", "kept"))
        _ended(_started("profile", f"{_MODEL}:two", "-o", graph, "--most", str(_MICRO_BATCH), "--runs", "1"))
        write_json(plan, _two_stages(read_json(graph, BlockGraph.from_json), "two").to_json())
        run = (plan, f"{_MODEL}:two", "--checkpoint", kept, "--every", "2", "--limit", "10")
        for number in range(_KILLS):
            resume = ["--resume"] if (kept / "last.json").exists() else []
            process = _started("run", *run, "--steps", "100000", *resume)
            ranks = _ranks(process, 2)
            time.sleep(draws.uniform(0, 12))
            victim = draws.choice(ranks)
            os.kill(victim, signal.SIGKILL)
            began = time.perf_counter()
            _, err = process.communicate(timeout=120)
            seconds.append(time.perf_counter() - began)
            lines.append(err.strip().splitlines())
            say(f"kill {number + 1}: ended within {seconds[-1]:.2f} s; {lines[-1]}")
            if process.returncode != 1 or any(Path(f"/proc/{each}").exists() for each in ranks):
                raise CollageError(
                    f"after kill {number + 1} the run ended with {process.returncode}, or a rank is left"
                )
        done = int(json.loads((kept / "last.json").read_text())["step"])
        resumed = _run(*run, "--steps", str(done + 5), "--resume")
        whole = _run(plan, f"{_MODEL}:two", "--steps", str(done + 5))
    off = max(abs(a - b) for a, b in zip(resumed["losses"], whole["losses"][done:], strict=True))
    return {"kills": _KILLS, "seconds": seconds, "lines": lines, "steps": done, "largest_difference": off}


def _ranks(process: subprocess.Popen[str], count: int) -> list[int]:
    """The processes that a run has started, once all are there."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while process.poll() is None and len(children.read_text().split()) < count:
        time.sleep(0.02)
    return [int(each) for each in children.read_text().split()]
