"""The measuring worker: imports the model, then builds and times candidates until its pipe closes.

Run by WorkerProcess, never by hand. Whatever a candidate does to this process, the parent survives it.
"""

from __future__ import annotations

import gc
import os
import pickle
import queue
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from collage.backends.base import Backend
from collage.core.child_process import Failure, parent_id, read_message, take_over_pipes, write_message
from collage.core.temporary import sweep
from collage.errors import CollageError, MeasurementError
from collage.frontend.model import Model, from_simplified
from collage.frontend.random_inputs import random_inputs
from collage.frontend.subgraph import Subgraph
from collage.kernel.kernel import Call
from collage.kernel.options import BuildOptions
from collage.measure_db.artifacts import Artifacts
from collage.measure_db.candidate import (
    BoundKernel,
    RejectedError,
    build,
    load,
    measure_candidate,
)
from collage.measure_db.fingerprint import fingerprint
from collage.measure_db.machine import limit_memory, spare_memory
from collage.measure_db.plan_protocol import Made, Make, PlanKernel, Stage
from collage.measure_db.plan_trace import Place
from collage.measure_db.plan_worker import PlanWorker
from collage.measure_db.protocol import (
    ORIGINAL_FILE,
    VALUES,
    Evaluate,
    Evaluated,
    Init,
    InitWhole,
    Measure,
    MeasureSwitch,
    MeasureTransform,
    Ready,
    Request,
    SwitchCost,
    artifact_folder,
    plan_folder,
)
from collage.measure_db.reference import evaluate
from collage.measure_db.results import Outcome, Rejection
from collage.measure_db.samples import Samples
from collage.measure_db.store import ValueStore
from collage.measure_db.switch_cost import switch_cost_us
from collage.measure_db.transform import measure_transform
from collage.measure_db.whole_worker import WholeWorker
from collage.native import beside_team

_SEED = 0


class _Backends:
    """Backends by name, recreated on first use."""

    def __init__(self, get: Callable[[str], Backend]) -> None:
        self._get = get

    def __getitem__(self, name: str) -> Backend:
        return self._get(name)


class _Worker:
    def __init__(self, init: Init) -> None:
        self._init = init
        self._backends: dict[str, Backend] = {}
        self._store = ValueStore(Path(init.folder) / VALUES)
        self._samples = Samples(self._store)
        self._place = Place(plan_folder(init.folder))

    @cached_property
    def model(self) -> Model:
        simple = onnx.load(str(Path(self._init.folder) / "model.onnx"))
        model = from_simplified(simple, self._init.name, self._init.wrong, self._init.samples)
        found = fingerprint(model.graph)
        if found != self._init.fingerprint:
            raise MeasurementError("the worker's import of the model differs from the compiler's")
        return model

    @cached_property
    def artifacts(self) -> Artifacts:
        return Artifacts(artifact_folder(self._init.folder), self.model.graph.constants)

    @cached_property
    def plans(self) -> PlanWorker:
        return PlanWorker(
            plan_folder(self._init.folder),
            self.model,
            _Backends(self._backend),
            self.artifacts,
            self._samples,
        )

    def answer(self, message: Any) -> object:
        if isinstance(message, Measure):
            return self._measure(message)
        if isinstance(message, Make):
            return self._make(message)
        if isinstance(message, MeasureTransform):
            return self._measure_transform(message)
        if isinstance(message, MeasureSwitch):
            return self._switch(message)
        if isinstance(message, Evaluate):
            return self._evaluate(message.node_limit_s)
        reply = self.plans.answer(message)
        return Failure(f"unknown message {type(message).__name__}") if reply is None else reply

    def _evaluate(self, node_limit_s: float) -> Evaluated:
        wrong = self._store.complete()
        if wrong is None:
            inputs = random_inputs(self.model, np.random.default_rng(_SEED))
            wrong = evaluate(self.model, inputs, self._store, node_limit_s)
            self._store.mark_complete(wrong)
        return Evaluated(wrong)

    def _measure(self, message: Measure) -> Outcome:
        request = message.request
        subgraph = Subgraph(self.model, request.nodes)

        def keep(options: BuildOptions, artifact: bytes) -> None:
            with suppress(MeasurementError):  # a full disk, which is not the candidate's fault
                self._keep(PlanKernel(request, options), artifact)

        return measure_candidate(
            *(subgraph, self._backend(request.backend), message.options, self._samples, message.sample_s),
            original=self._original(request),
            keep=keep,
            hopeless_us=message.hopeless_us,
        )

    def _measure_transform(self, message: MeasureTransform) -> Outcome:
        kernel = PlanKernel(message.transform, message.options)

        def keep(artifact: bytes) -> None:
            with suppress(MeasurementError):  # a full disk, which is not the backend's fault
                self.artifacts.keep(kernel.key, artifact)

        backend = self._backend(message.backend)
        return measure_transform(message.transform, backend, message.options, message.sample_s, keep)

    def _make(self, message: Make) -> Made | Rejection:
        request, options = message.kernel.what, message.kernel.options
        assert isinstance(request, Request)
        subgraph = Subgraph(self.model, request.nodes)
        try:
            backend = self._backend(request.backend)
            kernel = build(subgraph, backend, options, self._samples, self._original(request))
        except RejectedError as rejected:
            return rejected.rejection
        self._keep(message.kernel, kernel.artifact)
        return Made()

    def _original(self, request: Request) -> onnx.ModelProto | None:
        return onnx.load(str(Path(self._init.folder) / ORIGINAL_FILE)) if request.original else None

    def _keep(self, kernel: PlanKernel, artifact: bytes) -> None:
        assert isinstance(kernel.what, Request)
        self.artifacts.keep(kernel.key, artifact, Subgraph(self.model, kernel.what.nodes).constants)

    def _switch(self, message: MeasureSwitch) -> SwitchCost:
        kernels, calls, switches = [], [], 0
        for number, request in enumerate(message.requests):
            try:
                self._place.enter(Stage.SWITCH, launch=number)
                options = replace(message.options, variant=request.variant)
                kernel = self._kept(request, options)
            except RejectedError:
                continue
            kernels.append(kernel)  # whose buffers the calls use
            call = self._marked(number, kernel.call)
            if self._backend(request.backend).on_team():
                calls.append(call)
            else:
                calls.append(beside_team(call, message.options.threads))
                switches += 1
        return SwitchCost(switch_cost_us(calls, switches, 0.4 * message.sample_s))

    def _marked(self, number: int, call: Call) -> Call:
        mark = self._place.mark

        def marked() -> None:
            mark(number)
            call()

        return marked

    def _kept(self, request: Request, options: BuildOptions) -> BoundKernel:
        """The kernel that was measured, or where that is long ago one like it. Raises RejectedError."""
        subgraph, backend = Subgraph(self.model, request.nodes), self._backend(request.backend)
        key = PlanKernel(request, options).key
        if key in self.artifacts:
            return load(subgraph, backend, options, self._samples, self.artifacts.load(key))
        return build(subgraph, backend, options, self._samples)

    def _backend(self, name: str) -> Backend:
        if name not in self._backends:
            try:
                self._backends[name] = pickle.loads(self._init.backends[name])
            except Exception as error:  # unpickling runs the backend's own code
                text = f"{type(error).__name__}: {error}"
                raise MeasurementError(f"backend {name} cannot be recreated in the worker: {text}") from error
        return self._backends[name]


def main() -> None:
    """Serve one parent, until the pipe from it closes: so the parent's death ends the worker too."""
    source, sink = take_over_pipes()
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(
            each, signal.SIG_IGN
        )  # the parent's to handle: else a stopped service looks like a bad kernel
    # TVM's handler prints a page of stack, which would push what the library said out of the message.
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(source, messages), daemon=True).start()
    worker: _Worker | WholeWorker | None = None
    while True:
        message = messages.get()
        os.ftruncate(2, 0)  # what a candidate prints is kept until the next one
        # A kernel may hang with Python's lock held, and then nobody here notices that the parent is gone.
        signal.setitimer(signal.ITIMER_REAL, 2 * message.limit_s + 30 if hasattr(message, "limit_s") else 0)
        try:
            if isinstance(message, (Init, InitWhole)):
                worker = _begin(message)
                reply: object = Ready()
            else:
                assert worker is not None
                reply = worker.answer(message)
        except CollageError as error:
            reply = Failure(str(error))
        signal.setitimer(signal.ITIMER_REAL, 0)
        gc.collect()
        if isinstance(message, Init):
            gc.freeze()  # the model stays; collections after each candidate need not look at it
        write_message(sink, reply)


def _begin(init: Init | InitWhole) -> _Worker | WholeWorker:
    limit_memory(spare_memory() if init.memory_bytes is None else init.memory_bytes)
    if isinstance(init, InitWhole):
        return WholeWorker(init)
    worker = _Worker(init)
    worker.model  # noqa: B018  (imported before the parent's clock for the first candidate starts)
    return worker


def _receive(source: int, messages: queue.SimpleQueue[Any]) -> None:
    """Pass messages on; when the parent is gone, remove the files that are nobody's now and end at once.

    A kernel may have closed the pipe, too. Then the parent lives on, and its next worker needs the files. The parent
    may be gone before this process asks who that is, so it was told.
    """
    parent = parent_id()
    place = Path(tempfile.gettempdir()).parent  # where the parent has its folders, this worker's among them
    while True:
        try:
            messages.put(read_message(source))
        except BaseException:  # EOF, or damage: either way there is nobody to tell
            for _ in range(20):  # a dying process closes its files a moment before its children notice
                if os.getppid() != parent:
                    sweep(place)
                    break
                time.sleep(0.05)
            os._exit(0)


if __name__ == "__main__":
    main()
