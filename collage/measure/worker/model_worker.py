"""The worker's side of measuring: one model, its reference values, and the candidates that are built and timed."""

from __future__ import annotations

import gc
import pickle
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from collage.backends.base import Backend
from collage.check.bound_kernel import KernelSource
from collage.check.extraordinary import extraordinary
from collage.check.gate import Checked
from collage.check.reference import evaluate
from collage.check.samples import Samples
from collage.check.spent import BUILD, NETWORKS, REFERENCE, TRANSFORMS, spent, taken
from collage.check.stages import RejectedError
from collage.check.store import ValueStore
from collage.core.library_text import library_text
from collage.errors import MeasurementError
from collage.frontend.model import Model, from_simplified
from collage.frontend.random_inputs import random_inputs
from collage.frontend.read.apart import load_model
from collage.frontend.read.weights import forget_borrowed
from collage.frontend.subgraph import Subgraph
from collage.kernel.artifacts import Artifacts
from collage.kernel.options import BuildOptions
from collage.kernel.transform import LayoutTransform
from collage.measure.machine.free_memory import with_free_memory
from collage.measure.worker.plan_protocol import PlanKernel
from collage.measure.worker.plan_trace import WorkerPosition
from collage.measure.worker.plan_worker import PlanWorker
from collage.measure.worker.protocol import (
    VALUES,
    AskPlan,
    CandidateRequest,
    CheckKernel,
    Evaluated,
    Init,
    KernelFailed,
    RaceKernels,
    Tried,
    TryKernel,
    ahead_folder,
    artifact_folder,
    plan_folder,
)
from collage.measure.worker.racing import Racing
from collage.measure.worker.transform import measure_transform
from collage.measure_db.fingerprint import fingerprint
from collage.measure_db.results import Outcome, Rejection

_SEED = 0


class _Backends(dict[str, Backend]):
    """Backends by name, recreated from pickles on first use."""

    def __init__(self, pickles: Mapping[str, bytes]) -> None:
        super().__init__()
        self._pickles = pickles

    def __missing__(self, name: str) -> Backend:
        try:
            self[name] = pickle.loads(self._pickles[name])
        except Exception as error:  # unpickling runs the backend's own code, which may raise anything
            text = f"{type(error).__name__}: {library_text(error)}"
            raise MeasurementError(f"backend {name} cannot be recreated in the worker: {text}") from error
        return self[name]


class ModelWorker:
    """Answers messages about one model. Raises CollageError where no candidate is to blame."""

    def __init__(self, init: Init) -> None:
        forget_borrowed()  # the files of the model before this one
        self._init = init
        self._backends = _Backends(init.backends)
        self._store = ValueStore(Path(init.folder) / VALUES)
        self._samples = Samples(self._store)
        self._racing = Racing(self._samples, Path(init.folder))
        self._place = WorkerPosition(plan_folder(init.folder))
        self._alike: dict[tuple[str, str, BuildOptions], PlanKernel] = {}
        """The kernels that regions without constants share, by the region's digest, backend and options."""

    @cached_property
    def model(self) -> Model:
        """The model, imported on first use. Raises MeasurementError where it differs from the compiler's."""
        sent = self._init.model
        simple = load_model(Path(self._init.folder) / "model.onnx")
        model = from_simplified(simple, sent.name, sent.opaque, sent.example_inputs)
        if fingerprint(model.graph) != sent.fingerprint:
            raise MeasurementError("the worker's import of the model differs from the compiler's")
        return model

    @cached_property
    def _artifacts(self) -> Artifacts:
        return Artifacts(artifact_folder(self._init.folder), self.model.graph.constants)

    @cached_property
    def _ahead(self) -> Artifacts:
        """What was built ahead by another process, and nobody has measured yet."""
        return Artifacts(ahead_folder(self._init.folder), self.model.graph.constants, sharing=False)

    @cached_property
    def _plans(self) -> PlanWorker:
        return PlanWorker(
            plan_folder(self._init.folder),
            self.model,
            self._backends,
            self._artifacts,
            self._samples,
        )

    def answer(self, message: Any) -> object:
        """The reply to a message of the protocol."""
        if isinstance(message, TryKernel):
            return self._try(message)
        if isinstance(message, RaceKernels):
            return self._racing.race(message)
        if isinstance(message, CheckKernel):
            return self._check(message)
        if message.method != "spent":
            self._racing.let_go()
        if isinstance(message, AskPlan):
            with spent(NETWORKS):
                return self._plans.answer(message)
        return getattr(self, message.method)(*message.args)

    def spent(self) -> Mapping[str, float]:
        """The seconds since the last call, by kind of work (see ``collage.check.spent``)."""
        return taken()

    def evaluate(self, node_limit_s: float) -> Evaluated:
        """Compute the reference values, if they are not in the folder yet; a node has so many seconds."""
        with spent(REFERENCE):
            wrong = self._store.complete()
            if wrong is None:
                inputs = random_inputs(self.model, np.random.default_rng(_SEED))
                wrong = evaluate(self.model, inputs, self._store, node_limit_s)
                self._store.mark_complete(wrong)
                gc.collect()
            return Evaluated(wrong, tuple(extraordinary(self.model.graph, self._store)))

    def _try(self, message: TryKernel) -> Tried | KernelFailed:
        key = PlanKernel(message.request, message.options).key
        source = self._source(message.request, message.options)
        if message.known and key in self._artifacts:
            ready: bytes | None = self._artifacts.load(key)
        else:
            ready = self._ahead.take(key)
        self._samples.keep_within(message.limit_s)
        return self._racing.try_alone(message, replace(source, ready=ready))

    def _check(self, message: CheckKernel) -> Checked | KernelFailed:
        self._samples.keep_within(message.limit_s)
        request = self._racing.request(message.number)

        def keep(options: BuildOptions, artifact: bytes) -> None:
            with suppress(MeasurementError):  # a full disk, which is not the candidate's fault
                self._keep(PlanKernel(request, options), artifact)

        return self._racing.check(message.number, keep)

    def transform(self, transform: LayoutTransform, maker: str, options: BuildOptions, sample_s: float) -> Outcome:
        """Measure a layout transform that the backend ``maker`` makes, and keep its artifact."""
        kernel, backend = PlanKernel(transform, options), self._backends[maker]

        def keep(artifact: bytes) -> None:
            with suppress(MeasurementError):  # a full disk, which is not the backend's fault
                self._artifacts.keep(kernel.key, artifact)

        with spent(TRANSFORMS):
            return with_free_memory(backend, lambda: measure_transform(transform, backend, options, sample_s, keep))

    def make(self, kernel: PlanKernel) -> Rejection | None:
        """Build a candidate and keep its artifact; the plan that it is for checks it."""
        request, options = kernel.what, kernel.options
        assert isinstance(request, CandidateRequest)
        alike = self._alike.get(self._kind(request, options))

        def made() -> Rejection | None:
            with spent(BUILD):
                try:
                    artifact = (
                        self._source(request, options).compiled() if alike is None else self._artifacts.load(alike.key)
                    )
                except RejectedError as rejected:
                    return rejected.rejection
            self._keep(kernel, artifact)
            return None

        return with_free_memory(self._backends[request.backend], made)

    def build_ahead(self, kernel: PlanKernel) -> float | Rejection:
        """Build a candidate, and keep its artifact for the worker that measures it. Gives the seconds."""
        request = kernel.what
        assert isinstance(request, CandidateRequest)
        began = time.perf_counter()
        try:
            artifact = self._source(request, kernel.options).compiled()
        except RejectedError as rejected:
            return rejected.rejection
        self._ahead.keep(kernel.key, artifact, Subgraph(self.model, request.nodes).constants)
        return time.perf_counter() - began

    def _source(self, request: CandidateRequest, options: BuildOptions) -> KernelSource:
        """What the request's kernel is built from."""
        return KernelSource(Subgraph(self.model, request.nodes), self._backends[request.backend], options)

    def _keep(self, kernel: PlanKernel, artifact: bytes) -> None:
        assert isinstance(kernel.what, CandidateRequest)
        constants = Subgraph(self.model, kernel.what.nodes).constants
        self._artifacts.keep(kernel.key, artifact, constants)
        if not constants:
            self._alike[self._kind(kernel.what, kernel.options)] = kernel

    def _kind(self, request: CandidateRequest, options: BuildOptions) -> tuple[str, str, BuildOptions]:
        """What the artifact of a region without constants depends on."""
        return Subgraph(self.model, request.nodes).digest, request.backend, options
