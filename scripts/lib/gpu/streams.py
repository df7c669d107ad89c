"""A module's launches on one stream of the GPU, and on the streams of Nimble and Opara: the same kernels each time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from collage.graph.dataflow import Array
from collage.runtime.executor import Executor
from collage.schedule.gpu_streams import ALGORITHMS, gpu_schedule
from collage.schedule.program import Program, make_program
from collage.schedule.region import Region
from collage.schedule.schedule import TEAM, Schedule

_ROUNDS = 101


def schedules_of(program: Program) -> tuple[dict[str, Schedule], dict[str, float]]:
    """Schedules by name, and the milliseconds that finding each of them took, as Opara's paper tells them."""
    moved = [sum(program.types[v].nbytes for v in (*each.inputs, *each.outputs)) for each in program.launches]
    costs, dag = [each.cost_us for each in program.launches], program.ordered.dag
    found, took = {}, {}
    for name in ALGORITHMS:
        start = time.perf_counter()
        schedule = gpu_schedule(name, dag, program.on_gpu, costs, moved)
        took[name] = round((time.perf_counter() - start) * 1e3, 3)
        if schedule.count > 1:
            found[name] = schedule
    return found, took


def scheduled(program: Program, schedule: Schedule | None) -> tuple[Program, list[int]]:
    """The program with its launches on the schedule's streams, or on one, and where its launches were before."""
    launches = program.launches
    order = range(len(launches)) if schedule is None else schedule.order
    streams = (TEAM,) * len(launches) if schedule is None else schedule.streams
    views = [each for each in program.regions if each not in launches]
    made = {port.value for port in program.inputs}
    regions: list[Region] = []

    def add_views() -> None:
        while ready := [each for each in views if made >= {*each.inputs}]:
            for view in ready:
                views.remove(view)
                regions.append(view)
                made.update(view.outputs)

    add_views()
    for v in order:
        regions.append(replace(launches[v], stream=streams[v] + 1) if program.on_gpu[v] else launches[v])
        made.update(launches[v].outputs)
        add_views()
    again = make_program(regions, program.inputs, program.outputs, program.types, program.threads, program.devices)
    return again, [*order]


def compare_streams(module: Any, inputs: Sequence[Array], rounds: int = _ROUNDS) -> dict[str, Any]:
    """Medians in microseconds of the replayed launches, in turns, and what the schedules are like."""
    from scripts.lib.gpu.contenders import collage_contender, largest_error

    executor = module.executor
    found, took = schedules_of(executor.program)
    expected = executor.run(inputs)
    contenders, about, errors = {}, {}, {}
    for name, schedule in {"one stream": None, **found}.items():
        program, order = scheduled(executor.program, schedule)
        kernels = [executor._kernels[v] for v in order]
        own = Executor(program, kernels, executor._constants)
        contenders[name] = collage_contender(_Holder(own), inputs)
        errors[name] = largest_error(own.run(inputs), expected)
        about[name] = {
            "streams": max(1, program.ordered.schedule.count),
            "events": len(program.ordered.events),
            "arena_mib": round(sum(each.nbytes for each in program.arenas.values()) / 2**20, 2),
        }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, each in contenders.items():
            start = time.perf_counter_ns()
            each.enqueue()
            each.wait()
            times[name].append((time.perf_counter_ns() - start) / 1e3)
    medians = {name: statistics.median(each) for name, each in times.items()}
    return {
        "scheduling ms": took,
        "us": {name: round(us, 2) for name, us in medians.items()},
        "speedup": {name: round(medians["one stream"] / us, 3) for name, us in medians.items()},
        "error": errors,
        "about": about,
    }


class _Holder:
    """Has an executor, as a module has."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
