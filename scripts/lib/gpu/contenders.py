"""Collage and its rivals on one network, ready to be timed: with inputs on the GPU, and from the host to the host."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from collage.graph.dataflow import Array
from scripts.lib.errors import largest, scaled_error

_CALLS = 10
"""So many calls are enqueued before one wait, for the time without waiting for each."""


@dataclass(frozen=True)
class Contender:
    """``enqueue`` starts a run on inputs that are on the GPU, and ``wait`` waits for all. ``whole`` is a run from
    arrays of the host to arrays of the host, which it returns."""

    enqueue: Callable[[], Any]
    wait: Callable[[], None]
    whole: Callable[[], Sequence[Array]]


def collage_contender(module: Any, inputs: Sequence[Array]) -> Contender:
    """The compiled module. What is timed without copies are its launches, if all are on the GPU.

    Where an engine of the CPU runs the model, or the end of it, a run is from the host to the host.
    """
    from collage.core.cuda_driver import driver
    from collage.runtime.device_launches import DeviceLaunches
    from collage.runtime.executor import Executor

    executor = module.executor
    if not isinstance(executor, Executor):
        return Contender(lambda: executor.run(inputs), lambda: None, lambda: executor.run(inputs))
    launches = [each for each in executor.calls if isinstance(each, DeviceLaunches)]
    on_gpu = len(launches) == len(executor.calls)
    for _ in range(3):  # the first run loads, and the second one makes the graph
        executor.run(inputs)

    def enqueue() -> None:
        if not on_gpu:
            executor.launch()
            return
        for each in launches:
            each.replay()

    def wait() -> None:
        if on_gpu:
            driver().synchronize(driver().stream)

    return Contender(enqueue, wait, lambda: executor.run(inputs))


def torch_contender(model: Callable[..., Any], inputs: Sequence[Array], *, graph: bool) -> Contender:
    """A module of PyTorch, on the GPU, as it is or captured in a CUDA graph."""
    import torch

    there = [torch.from_numpy(each).cuda() for each in inputs]
    run: Callable[[], Any] = lambda: model(*there)  # noqa: E731
    with torch.inference_mode():
        for _ in range(5):
            made = run()
        torch.cuda.synchronize()
        if graph:
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured):
                made = run()
            run = captured.replay

    def enqueue() -> None:
        with torch.inference_mode():
            run()

    def whole() -> list[Array]:
        with torch.inference_mode():
            for target, source in zip(there, inputs, strict=True):
                target.copy_(torch.from_numpy(source))
            found = run()
            found = made if found is None else found
            outputs = found if isinstance(found, (tuple, list)) else (found,)
            return [each.float().cpu().numpy() for each in outputs]

    return Contender(enqueue, torch.cuda.synchronize, whole)


def engine_contender(name: str, profile: str, path: Path, inputs: Sequence[Array]) -> Contender:
    """An engine of Collage's registry on a whole ONNX model, with inputs and outputs on the GPU."""
    import onnx

    import collage
    from collage.backends.engine import as_engine
    from collage.core.cuda_driver import driver
    from collage.frontend.model import import_model
    from collage.frontend.subgraph import Subgraph
    from collage.graph.storage import CUDA
    from collage.kernel.device_array import copy_on, empty_on, put, to_host
    from collage.kernel.device_call import DeviceCall
    from collage.kernel.options import BuildOptions
    from collage.runtime.device_launches import DeviceLaunch, DeviceLaunches

    engine, options = as_engine(collage.default_registry()[name]), BuildOptions(profile=profile)
    imported = import_model(str(path))
    whole = Subgraph(imported, tuple(range(len(imported.graph.nodes))))
    kernel = engine.load(engine.codegen_model(onnx.load(str(path)), options), options)
    given = [copy_on(CUDA, each) for each in inputs]
    made = [empty_on(CUDA, kind.shape, kind.dtype) for kind in whole.output_types]
    call = kernel.bind(given, made)
    assert isinstance(call, DeviceCall)
    launches = DeviceLaunches([DeviceLaunch(0, call)])
    for _ in range(3):
        launches()

    def run() -> list[Array]:
        for target, source in zip(given, inputs, strict=True):
            put(target, source)
        launches()
        return [to_host(each) for each in made]

    return Contender(launches.replay, lambda: driver().synchronize(driver().stream), run)


def interleaved(contenders: Mapping[str, Contender], seconds: float) -> dict[str, dict[str, float]]:
    """Medians in microseconds of runs in turns, for so many seconds.

    ``latency`` is a run and waiting for it, ``queued`` one of ten runs that are enqueued before waiting, and
    ``host to host`` a run with its copies.
    """
    taken: dict[str, dict[str, list[float]]] = {
        name: {"latency": [], "queued": [], "host to host": []} for name in contenders
    }
    for each in contenders.values():
        each.whole()
        each.enqueue()
        each.wait()
    end = time.monotonic() + seconds
    rounds = 0
    while rounds < 5 or time.monotonic() < end:
        rounds += 1
        for name, each in contenders.items():
            times = taken[name]
            for _ in range(3):
                times["latency"].append(_us(each.enqueue, each.wait))
            times["queued"].append(_us(partial(_often, each.enqueue), each.wait) / _CALLS)
            times["host to host"].append(_us(each.whole, each.wait))
    return {
        name: {
            **{f"{kind} us": round(statistics.median(times), 2) for kind, times in found.items()},
            "fastest latency us": round(min(found["latency"]), 2),
            "rounds": rounds,
        }
        for name, found in taken.items()
    }


def _often(run: Callable[[], Any]) -> None:
    for _ in range(_CALLS):
        run()


def _us(run: Callable[[], Any], wait: Callable[[], None]) -> float:
    start = time.perf_counter_ns()
    run()
    wait()
    return (time.perf_counter_ns() - start) / 1e3


def largest_error(actual: Sequence[Array], expected: Sequence[Array]) -> float:
    """The largest error in units of the largest magnitude of each output; infinity where one has a wrong NaN."""
    return largest(scaled_error(a, e) for a, e in zip(actual, expected, strict=True))
