"""How measuring scales with the workers of a cluster: candidates that sleep, jobs that do nothing, and real models."""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
from onnx import TensorProto, helper

import collage
from collage.backends.base import Availability, Backend, BackendKind
from collage.cluster.address import ClusterAddress
from collage.cluster.crews import on_cluster
from collage.cluster.ray_crew import RayCrew
from collage.errors import CollageError
from collage.frontend.model import import_model
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Array
from collage.kernel.kernel import Call, Kernel
from collage.kernel.options import BuildOptions
from collage.measure_db.crew import Worker
from collage.measure_db.database import Database
from collage.measure_db.effort import FULL
from collage.measure_db.measured_model import MeasuredModel
from collage.measure_db.measurer import Measurer
from collage.measure_db.protocol import Request
from collage.measure_db.results import Measurement
from collage.measure_db.session import WorkerSession
from collage.measure_db.settings import MeasureSettings
from scripts.lib.studies.cluster_simulation import Costs, JobTime

_NOTHINGS = 400
_SENT_BYTES_PER_S = 1.25e8
"""The network's speed that simulations assume: 1 Gbit/s."""


class Sleeper(Backend):
    """A library whose kernels take long to build and no time to run."""

    name: ClassVar[str] = "sleeper"
    kind: ClassVar[BackendKind] = BackendKind.LIBRARY

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def available(self) -> Availability:
        """It is there, always."""
        return Availability(version="1")

    def sources(self, options: BuildOptions) -> Sequence[Any]:
        """Nothing: its candidates are asked for by hand."""
        return ()

    def codegen(self, subgraph: Subgraph, options: BuildOptions) -> bytes:
        """Sleep, as a made-up compiler."""
        time.sleep(self.seconds)
        return b""

    def load(self, artifact: bytes, options: BuildOptions) -> Kernel:
        """A kernel for a relu."""
        return _Relu()


class _Relu(Kernel):
    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        def call() -> None:
            np.maximum(inputs[0], 0, out=outputs[0])

        return call


@dataclass(frozen=True)
class Nothing:
    """A job that does nothing, for the cost of a job."""

    size: int = 1

    def run(self, worker: Worker) -> Iterator[int]:
        """Give one part."""
        yield 0


def sleepers(counts: Sequence[int], candidates: int, seconds: float) -> list[dict[str, Any]]:
    """Measure made-up candidates that sleep, first without a cluster, then with so many workers on this machine."""
    found = [_run(0, candidates, seconds)]
    found += [_run(count, candidates, seconds) for count in counts]
    alone = next((each["seconds"] for each in found if each["workers"] == 1), found[0]["seconds"])
    return [{**each, "speedup": alone / each["seconds"]} for each in found]


def _run(workers: int, candidates: int, seconds: float) -> dict[str, Any]:
    backend = Sleeper(seconds)
    session = _session(backend, candidates)
    requests = [Request((node,), backend.name) for node in range(candidates)]
    with tempfile.TemporaryDirectory(prefix="collage-bench-") as folder, Database(Path(folder) / "db") as db:
        if not workers:
            with Measurer(session, db) as measurer:
                session.worker(1)
                return {"workers": 0, **_timed(measurer, requests)}
        with on_cluster(ClusterAddress("local", workers), {backend.name: backend}) as crews:
            crew = crews.crew(session)
            with Measurer(session, db, crew=crew) as measurer:
                started = time.perf_counter()
                crew.start()
                start_s = time.perf_counter() - started
                return {
                    "workers": workers,
                    "start_s": start_s,
                    **_timed(measurer, requests),
                    **_dispatch(crew),
                }


def _timed(measurer: Measurer, requests: Sequence[Request]) -> dict[str, Any]:
    started = time.perf_counter()
    outcomes = measurer.measure(requests)
    spent = time.perf_counter() - started
    wrong = [outcome for outcome in outcomes.values() if not isinstance(outcome, Measurement)]
    if wrong:
        raise CollageError(f"a made-up candidate was rejected: {wrong[0]}")
    return {"seconds": spent, "candidates": len(outcomes)}


def _dispatch(crew: RayCrew) -> dict[str, float]:
    """The milliseconds of a job that does nothing, when all workers do such jobs."""
    started = time.perf_counter()
    for _ in crew.run([Nothing()] * _NOTHINGS):
        pass
    return {"job_ms": (time.perf_counter() - started) / _NOTHINGS * 1e3}


def _session(backend: Backend, count: int) -> WorkerSession:
    """A session for a model of so many relus, each of another shape, so that none is the same as another."""
    kinds = {
        f"x{n}": helper.make_tensor_value_info(f"x{n}", TensorProto.FLOAT, [1, n + 8]) for n in range(count)
    }
    outs = [helper.make_tensor_value_info(f"y{n}", TensorProto.FLOAT, [1, n + 8]) for n in range(count)]
    nodes = [helper.make_node("Relu", [f"x{n}"], [f"y{n}"]) for n in range(count)]
    graph = helper.make_graph(nodes, "relus", [*kinds.values()], outs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    effort = replace(FULL, kernel_s=0.01)
    settings = MeasureSettings(
        {backend.name: backend}, {backend.name: "1"}, BuildOptions(1), "made up", effort
    )
    return WorkerSession(MeasuredModel(import_model(model)), settings)


def compile_both(path: Path, threads: int) -> dict[str, Any]:
    """Compile a model without a cluster and on one of this machine, each with a new database."""
    found: dict[str, Any] = {"model": path.stem}
    jobs: list[JobTime] = []
    with tempfile.TemporaryDirectory(prefix="collage-bench-") as folder:
        modules = {}
        for name, cluster in (("here", None), ("cluster", "local")):
            started = time.perf_counter()
            with _job_times() as times:
                modules[name] = collage.compile(
                    path, db=Path(folder) / name, cluster=cluster, threads=threads, progress=None
                )
            found[f"{name}_s"] = time.perf_counter() - started
            found[f"{name}_us"] = modules[name].report.measured_us
            jobs = times
    regions = [
        {(each["backend"], tuple(each["nodes"])) for each in module.summary()["regions"]}
        for module in modules.values()
    ]
    return {
        **found,
        "regions": len(regions[0]),
        "same_regions": len(regions[0] & regions[1]),
        "model_bytes": onnx.load(str(path)).ByteSize(),
        "jobs": [vars(job) for job in jobs],
    }


@contextmanager
def _job_times() -> Iterator[list[JobTime]]:
    """The jobs that crews do inside the block, as their log tells."""
    times: list[JobTime] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if isinstance(record.args, tuple) and record.msg == RayCrew.TOOK:
                size, seconds = record.args
                times.append(JobTime(int(str(size)), float(str(seconds))))

    logger, listener = logging.getLogger(RayCrew.__module__), Listener()
    before = logger.level
    logger.addHandler(listener)
    logger.setLevel(logging.DEBUG)
    try:
        yield times
    finally:
        logger.removeHandler(listener)
        logger.setLevel(before)


def measured_costs(runs: Sequence[dict[str, Any]], model_bytes: int) -> Costs:
    """The costs for simulations, from the runs with candidates that sleep."""
    on_ray = [each for each in runs if each["workers"]]
    if not on_ray:
        raise CollageError("simulations need a run with workers: --workers 1,2,4.")
    job_s = min(each["job_ms"] for each in on_ray) / 1e3
    start_s = min(each["start_s"] for each in on_ray)
    return Costs(job_s, _outcome_s(), start_s, model_bytes / _SENT_BYTES_PER_S)


def _outcome_s(count: int = 300) -> float:
    """Seconds for recording an outcome in a database."""
    with tempfile.TemporaryDirectory(prefix="collage-bench-") as folder, Database(Path(folder) / "db") as db:
        session = _session(Sleeper(0.0), 1)
        with Measurer(session, db) as measurer:
            key = measurer.key(Request((0,), "sleeper"))
            started = time.perf_counter()
            for number in range(count):
                db.put(replace(key, digest=str(number)), Measurement(1.0, 0.1, 0.9, 9, 0.0), "")
            return (time.perf_counter() - started) / count


def note(text: str) -> None:
    """Tell how far the study has come."""
    print(text, file=sys.stderr, flush=True)
