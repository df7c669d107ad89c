"""Costs of candidates: from the database where they are known, else measured in a worker process, once."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any

import onnx
import onnxruntime
import tvm

from collage.backends.base import TRIAL_LIMIT_S, VIEW, Backend
from collage.backends.layout import maker_of
from collage.core.progress import Progress
from collage.core.temporary import TemporaryFolder
from collage.errors import MeasurementError, unknown_names
from collage.frontend.model import Model
from collage.frontend.simplify import save_proto
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Array
from collage.graph.magnitudes import Magnitudes, can_be_infinite, can_be_scanned
from collage.kernel.options import ALL_PLAIN, BuildOptions, Variant
from collage.kernel.transform import LayoutTransform
from collage.measure_db.artifacts import Artifacts
from collage.measure_db.coldness import weights_among
from collage.measure_db.contenders import Contenders
from collage.measure_db.database import Database, Json, KernelKey
from collage.measure_db.effort import FULL, Effort
from collage.measure_db.fingerprint import fingerprint, model_digest, original_digest
from collage.measure_db.keys import Fact, as_number, write_number
from collage.measure_db.plan_protocol import Make, PlanKernel, Stage
from collage.measure_db.plan_trace import Place
from collage.measure_db.process import WorkerDiedError, WorkerProcess, Workers
from collage.measure_db.protocol import (
    AS_LOADED,
    ORIGINAL_FILE,
    VALUES,
    Evaluate,
    Evaluated,
    Init,
    Measure,
    MeasureSwitch,
    MeasureTransform,
    Request,
    SwitchCost,
    artifact_folder,
    plan_folder,
)
from collage.measure_db.results import Measurement, Outcome, Rejection, RejectionKind
from collage.measure_db.samples import fatal_samples
from collage.measure_db.switch_cost import switch_cost_us
from collage.measure_db.travel import carried_modules, pickle_backend

log = logging.getLogger(__name__)

MEMORY_VARIABLE = "COLLAGE_WORKER_MEMORY"
"""Environment variable with the worker's memory limit in bytes, where the constructor is given none."""

_EVALUATE_LIMIT_S = 1800.0
_LEAST_EVALUATE_S = 60.0
"""Longest and shortest limits of the reference run of a model. Between them each operator has a candidate's limit."""


def _write_reasons(reasons: Mapping[int, str]) -> Json:
    return {str(index): reason for index, reason in reasons.items()}


def _read_reasons(value: Any) -> Mapping[int, str]:
    return {int(index): str(reason) for index, reason in value.items()}


_WRONG_CONVERSIONS: Fact[Mapping[int, str]] = Fact("wrong_conversions", _write_reasons, _read_reasons)
_EPSILON_US: Fact[float] = Fact("epsilon_us", write_number, as_number)
_LAUNCH_US: Fact[float] = Fact("launch_us", write_number, as_number)


class Measurer:
    """Measures candidates of one model; a context manager, since it may hold a worker and a temporary folder.

    ``versions`` gives the library version of each backend. Nothing is started before something has to be
    measured. Raises MeasurementError when the worker cannot be started, or a backend cannot travel to it.
    """

    def __init__(
        self,
        model: Model,
        backends: Mapping[str, Backend],
        versions: Mapping[str, str],
        options: BuildOptions,
        hardware: str,
        database: Database,
        *,
        time_limit_s: float = 60.0,
        memory_bytes: int | None = None,
        progress: Callable[[Progress], None] | None = None,
        workers: Workers | None = None,
        effort: Effort = FULL,
        original: onnx.ModelProto | None = None,
        guards: bool = True,
        as_loaded: Callable[[], bytes] | None = None,
    ) -> None:
        """``hardware`` is Target.measured_on; ``time_limit_s`` is for each candidate, building and timing it.

        Tuning a candidate has TRIAL_LIMIT_S seconds a trial on top of that. ``workers`` gives the worker and takes it
        back; by default the measurer has its own. ``effort`` is how long to take samples. ``original`` is what the
        model was made from (see ``as_region``), where that is to be measured, too. Without ``guards`` kernels that are
        right on finite numbers only are of no use; ``as_loaded`` gives the serialised model that goes with programs of
        such kernels (see ``Parts``).
        """
        self.model = model
        self.measurements_made = 0
        self._backends = dict(backends)
        self._versions = dict(versions)
        self._options = options
        self._hardware = hardware
        self._database = database
        self._time_limit_s = time_limit_s
        self._memory_bytes = memory_bytes if memory_bytes is not None else _from_environment()
        self._progress = progress or (lambda _: None)
        self.original = original
        self._original_digest = "" if original is None else original_digest(original)
        self._subgraphs: dict[tuple[int, ...], Subgraph] = {}
        self._makers: dict[LayoutTransform, Backend | None] = {}
        self._init: Init | None = None
        self._folder: TemporaryFolder | None = None
        self._worker: WorkerProcess | None = None
        self._workers = workers if workers is not None else Workers()
        self._owns_workers = workers is None
        self._effort = effort
        self._guards = guards
        self._as_loaded = as_loaded
        self._magnitudes = Magnitudes(model.graph)
        self._wrong: Mapping[int, str] = {}
        self._host: Measurer | None = None
        self._beside: dict[int, Measurer] = {}

    def __enter__(self) -> Measurer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the worker back and remove the temporary folder. Closing twice does nothing."""
        for other in self._beside.values():
            other.close()
        try:
            if self._worker is not None:
                self._workers.release(self._worker, self._options.threads)
            if self._owns_workers:
                self._workers.close()
        finally:
            self._worker = None
            if self._folder is not None:  # one that it does not share with its host
                self._folder.remove()
            self._init = self._folder = None

    @property
    def backends(self) -> Mapping[str, Backend]:
        """By name."""
        return self._backends

    @property
    def made_in_all(self) -> int:
        """Measurements made so far, those of measurers beside this one included."""
        return self.measurements_made + sum(other.made_in_all for other in self._beside.values())

    @property
    def time_limit_s(self) -> float:
        """For each candidate."""
        return self._time_limit_s

    @property
    def folder(self) -> str:
        """Where workers find the model, and keep reference values and artifacts; made on first use."""
        return self._session().folder

    @cached_property
    def artifacts(self) -> Artifacts:
        """What was measured, or made since."""
        return Artifacts(artifact_folder(self.folder), self.model.graph.constants)

    @cached_property
    def as_loaded(self) -> bytes | None:
        """The serialised model that goes with guarded programs, if there is one."""
        return None if self._as_loaded is None else self._as_loaded()

    def keep_as_loaded(self) -> None:
        """Have ``as_loaded`` where the worker looks for it."""
        path = plan_folder(self.folder) / AS_LOADED
        if self.as_loaded is not None and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.as_loaded)

    def beside(self, threads: int) -> Measurer:
        """One of the same model for that many threads, which shares the folder and ends with this one."""
        if threads == self._options.threads:
            return self
        if threads not in self._beside:
            found = Measurer(
                *(self.model, self._backends, self._versions),
                BuildOptions(threads=threads, exact=self._options.exact),
                *(self._hardware, self._database),
                time_limit_s=self._time_limit_s,
                memory_bytes=self._memory_bytes,
                progress=self._progress,
                workers=self._workers,
                effort=self._effort,
                guards=self._guards,
            )
            found._host = self
            self._beside[threads] = found
        return self._beside[threads]

    def make(self, kernel: PlanKernel) -> Rejection | None:
        """Have the kernel's artifact, or why it cannot be had: it is made and checked if it was measured long ago."""
        key = kernel.key
        if key in self.artifacts:
            return None
        if isinstance(kernel.what, LayoutTransform):
            return self._make_transform(kernel, kernel.what)
        if kernel.what.backend == VIEW:
            self.artifacts.keep(
                key, self._backends[VIEW].codegen(self._subgraph(kernel.what.nodes), kernel.options)
            )
            return None
        made = self._ask(Make(kernel, self._time_limit_s), self._time_limit_s, str(kernel.what.backend))
        return made if isinstance(made, Rejection) else None

    def _make_transform(self, kernel: PlanKernel, transform: LayoutTransform) -> Rejection | None:
        try:
            artifact = self._maker(transform).codegen_transform(transform, kernel.options)
        except Exception as error:  # a third party's code
            return Rejection(RejectionKind.FAILED, f"codegen: {type(error).__name__}: {error}")
        self.artifacts.keep(kernel.key, artifact)
        return None

    def make_here(self, kernel: PlanKernel) -> None:
        """Have the kernel's artifact; one that an earlier compile measured, ran and handed over is made here.

        Raises what the backend does.
        """
        if kernel.key in self.artifacts:
            return
        request = kernel.what
        if isinstance(request, LayoutTransform) or request.backend == VIEW:
            self.make(kernel)
            return
        backend, subgraph = self._backends[request.backend], self._subgraph(request.nodes)
        if request.original:
            assert self.original is not None
            artifact = backend.codegen_model(self.original, kernel.options)
        else:
            artifact = backend.codegen(subgraph, kernel.options)
        self.artifacts.keep(kernel.key, artifact, subgraph.constants)

    def reject(self, kernel: PlanKernel, rejection: Rejection) -> None:
        """Remember that the kernel is not to be used, though it was measured."""
        own = self.beside(kernel.options.threads)
        if isinstance(kernel.what, LayoutTransform):
            self._database.put(own._transform_key(kernel.what), rejection, str(kernel.what.kind))
            return
        text = str(self._subgraph(kernel.what.nodes))
        self._database.put(own.key(kernel.what), rejection, text)

    def known(self, requests: Collection[Request]) -> dict[Request, Outcome]:
        """What is recorded of the requests."""
        keys = {request: self.key(request) for request in requests}
        found = self._database.get(keys.values())
        return {request: self._usable(request, found[key]) for request, key in keys.items() if key in found}

    def measure(
        self, requests: Sequence[Request], progress: Callable[[Progress], None] | None = None
    ) -> dict[Request, Outcome]:
        """An outcome for each request; candidates that are the same subgraph are measured once.

        A candidate that crashes, hangs, or runs out of memory or time is rejected, which is remembered like a
        measurement, and the next one gets a fresh worker. Each outcome is in the database before the next
        candidate starts, so interrupting loses nothing. ``progress`` is told instead of the one that all others
        tell.
        """
        show = progress or self._progress
        unknown = {request.backend for request in requests} - self._backends.keys()
        if unknown:
            raise unknown_names("backends", unknown, self._backends)
        keys = {request: self.key(request) for request in requests}
        known = self._database.get(keys.values())
        missing: dict[KernelKey, Request] = {}
        for request, key in keys.items():
            if key not in known:
                missing.setdefault(key, request)
        contenders = Contenders()
        for request, key in keys.items():
            if key in known:
                contenders.note(request, known[key])
        key_of = {request: key for key, request in missing.items()}
        done = 0
        # The samples of a region serve all that are measured on it, one after another.
        for _, region in groupby(sorted(key_of, key=lambda r: r.nodes), key=lambda r: r.nodes):
            for request in contenders.in_turn(region):
                self._tell(show, request, done, len(missing))
                outcome = self._measure_one(request, contenders.hopeless_us(request))
                contenders.note(request, outcome)
                self._database.put(key_of[request], outcome, self._description(request))
                known[key_of[request]] = outcome
                self.measurements_made += 1
                done += 1
        if missing:
            show(Progress("measure", len(missing), len(missing)))
        return {request: self._usable(request, known[key]) for request, key in keys.items()}

    def _tell(self, show: Callable[[Progress], None], request: Request, done: int, total: int) -> None:
        show(Progress("measure", done, total, f"{request.backend}: {self._description(request)}"))

    def _description(self, request: Request) -> str:
        if request.original:
            return ", ".join(filter(None, ("the model as written", request.profile)))
        text = str(self._subgraph(request.nodes))
        return text if request.variant == ALL_PLAIN else f"{text} ({request.variant})"

    def _usable(self, request: Request, outcome: Outcome) -> Outcome:
        """The outcome, or why a kernel that is right on finite numbers only cannot be guarded in this model."""
        if not (isinstance(outcome, Measurement) and outcome.finite_only):
            return outcome
        subgraph = self._subgraph(request.nodes)
        types = {kind.dtype for kind in subgraph.input_types}
        unknown = sorted(t for t in types if can_be_infinite(t) and not can_be_scanned(t))
        if not self._guards:
            why = "the model has 2 GiB or more, too much to be kept for these"
        elif unknown:
            why = f"nothing scans {', '.join(unknown)} for these"
        elif self._magnitudes.overflows(subgraph.operators):
            why = "its weights are so large that finite numbers may become infinite inside"
        else:
            return outcome
        return Rejection(RejectionKind.INACCURATE, f"wrong on NaN or infinities, and {why}")

    def measure_transforms(self, transforms: Collection[LayoutTransform]) -> dict[LayoutTransform, float]:
        """Costs of layout transforms in microseconds; those that cannot be made are left out.

        A transform is made by the first of the measurer's backends that does. What such a backend runs beside the team
        pays for a context switch, which is not part of this.
        """
        made = [each for each in transforms if self.transform_backend(each) is not None]
        keys = {transform: self._transform_key(transform) for transform in made}
        known = self._database.get(keys.values())
        missing = {transform: key for transform, key in keys.items() if key not in known}
        for done, (transform, key) in enumerate(missing.items()):
            text = str(transform)
            self._progress(Progress("measure", done, len(missing), f"{key.backend}: {text}"))
            message = MeasureTransform(
                transform, key.backend, self._options, self._time_limit_s, self._effort.kernel_s
            )
            outcome: Outcome = self._ask(message, self._time_limit_s, text)
            known[key] = outcome
            self._database.put(key, known[key], text)
            self.measurements_made += 1
        if missing:
            self._progress(Progress("measure", len(missing), len(missing)))
        costs = {}
        for transform, key in keys.items():
            outcome = known[key]
            if isinstance(outcome, Measurement):
                costs[transform] = outcome.median_us
        return costs

    def transform_backend(self, transform: LayoutTransform) -> Backend | None:
        """The backend that makes the transform, if there is one."""
        if transform not in self._makers:
            self._makers[transform] = maker_of(transform, self._backends)
        return self._makers[transform]

    def _maker(self, transform: LayoutTransform) -> Backend:
        """The same of a transform that some placement has."""
        found = self.transform_backend(transform)
        assert found is not None
        return found

    def _transform_key(self, transform: LayoutTransform) -> KernelKey:
        backend = self._maker(transform).name
        return KernelKey(
            digest=str(transform),
            backend=backend,
            backend_version=self._versions[backend],
            settings=self._effort.mark,
            threads=self._options.threads,
            hardware=self._hardware,
            tvm_version="",
        )

    def key(self, request: Request) -> KernelKey:
        """What the request's outcome is recorded under."""
        backend = self._backends[request.backend]
        settings = backend.settings(self._options_for(request))
        variant = "" if request.variant == ALL_PLAIN else f"{_per_value(request.variant)} "
        if request.original:
            settings += f" {request.profile} on the original {self._original_digest}"
        among = weights_among(self._subgraph(request.nodes))
        return KernelKey(
            digest=self._subgraph(request.nodes).digest,
            backend=request.backend,
            backend_version=self._versions[request.backend],
            settings=variant + settings + (f" among {among >> 20} MiB" if among else "") + self._effort.mark,
            threads=self._options.threads,
            hardware=self._hardware,
            tvm_version=tvm.__version__,
        )

    def verify(self) -> dict[int, str]:
        """ONNX nodes (by index) that TVM's importer converted to something else, with the reason.

        ``from_simplified(model.onnx, model.name, {**model.opaque, **wrong})`` makes them opaque; measure that
        model with a new Measurer. What was found is remembered for the model and the libraries' versions.
        """
        versions = f"tvm {tvm.__version__} onnxruntime {onnxruntime.__version__}"
        key = f"{model_digest(self.model)}{_digest(self.model.samples)} {versions}"
        found = self._database.remember(_WRONG_CONVERSIONS.at(key), self._wrong_conversions)
        return dict(found)

    def _wrong_conversions(self) -> Mapping[int, str]:
        self.worker()
        return self._wrong

    def epsilon_us(self, requests: Sequence[Request]) -> float:
        """Eq. 2.2's cost of one more kernel launch, in microseconds; see ``switch_cost_us``.

        Measured with the kernels of ``requests`` (two or more quick ones of different backends) the first
        time, then remembered for these backends' versions, the machine and the threads. With fewer there is
        nothing to switch between: it is the launch alone, remembered likewise. A kernel that was measured without
        trouble, and brings the worker down beside the others, is rejected.
        """
        if len(requests) < 2:
            return self._launch_us()
        versions = ", ".join(f"{name} {version}" for name, version in sorted(self._versions.items()))
        key = f"{self._hardware}; {self._options.threads} threads; {versions}; tvm {tvm.__version__}{self._effort.mark}"
        try:
            return self._database.remember(
                _EPSILON_US.at(key), partial(self._switch_cost_us, tuple(requests))
            )
        except WorkerDiedError as died:
            stage, number, launch = Place(plan_folder(self.folder)).now
            culprit = requests[launch if stage is Stage.SWITCH else number]
            log.info("%s beside others: %s", culprit.backend, died.rejection)
            text = f"beside kernels of other backends: {died.rejection.message}"
            self.reject(PlanKernel(culprit, self._options), replace(died.rejection, message=text))
        return self.epsilon_us([each for each in requests if each != culprit])

    def _switch_cost_us(self, requests: tuple[Request, ...]) -> float:
        """Measured in the worker. Raises WorkerDiedError."""
        message = MeasureSwitch(requests, self._options, self._time_limit_s, self._effort.kernel_s)
        found: SwitchCost = self.worker().ask(message, self._time_limit_s)
        return found.us

    def _launch_us(self) -> float:
        return self._database.remember(_LAUNCH_US.at(self._hardware), partial(switch_cost_us, ()))

    def _measure_one(self, request: Request, hopeless_us: float) -> Outcome:
        options = self._options_for(request)
        limit_s = self._time_limit_s + TRIAL_LIMIT_S * options.tune_trials
        what = f"{request.backend} on {self._subgraph(request.nodes)}"
        message = Measure(request, options, limit_s, self._effort.kernel_s, hopeless_us)
        while True:
            known = self._fatal_samples()
            outcome: Outcome = self._ask(message, limit_s, what)
            if isinstance(outcome, Measurement) or self._fatal_samples() == known:
                return outcome
            # It was the reference that ended the worker, not the candidate; the next one does without that sample.

    def _fatal_samples(self) -> set[Path]:
        """Notes of inputs that ended a worker while it made reference values of them."""
        return set() if self._init is None else fatal_samples(Path(self._init.folder) / VALUES)

    def _ask(self, message: Measure | MeasureTransform | Make, limit_s: float, what: str) -> Any:
        """The reply: an Outcome where something was to be measured."""
        try:
            return self.worker().ask(message, limit_s)
        except WorkerDiedError as died:
            log.info("%s: %s", what, died.rejection)
            return died.rejection

    def worker(self) -> WorkerProcess:
        """A worker that has imported the model, with the reference values computed."""
        if self._worker is None or not self._worker.alive:
            self._worker = self._workers.start(self._session())
            try:
                limit_s = _LEAST_EVALUATE_S + self._time_limit_s * len(self.model.onnx.graph.node)
                evaluated: Evaluated = self._worker.ask(
                    Evaluate(self._time_limit_s), min(limit_s, _EVALUATE_LIMIT_S)
                )
            except WorkerDiedError as died:
                raise MeasurementError(
                    f"computing reference values with ONNX Runtime: {died.rejection.message}"
                ) from None
            self._wrong = evaluated.wrong
        return self._worker

    def _session(self) -> Init:
        """The folder that workers start from, made on first use."""
        if self._init is None and self._host is not None:
            self._init = replace(self._host._session(), threads=self._options.threads)
        if self._init is None:
            pickles = {name: pickle_backend(name, backend) for name, backend in self._backends.items()}
            self._folder = TemporaryFolder("measure")
            folder = self._folder.path
            self._init = Init(
                folder=str(folder),
                name=self.model.name,
                wrong=dict(self.model.opaque),  # opaque nodes stay so, whatever the reason was
                fingerprint=fingerprint(self.model.graph),
                backends=pickles,
                threads=self._options.threads,
                memory_bytes=self._memory_bytes,
                samples=self.model.samples,
                carried=carried_modules(self._backends.values()),
            )
            save_proto(self.model.onnx, folder / "model.onnx")
            if self.original is not None:
                save_proto(self.original, folder / ORIGINAL_FILE)
        return self._init

    def _options_for(self, request: Request) -> BuildOptions:
        """What the candidate will be built for in a module: the whole model has the cores to itself.

        Trials are only for what the backend tunes, so that the others' measurements serve with and without.
        """
        tunes = self._backends[request.backend].tunes(self._subgraph(request.nodes))
        return replace(
            self._options,
            exclusive=len(request.nodes) == len(self.model.graph.nodes),
            tune_trials=self._options.tune_trials if tunes else 0,
            variant=request.variant,
            profile=request.profile,
        )

    def _subgraph(self, nodes: tuple[int, ...]) -> Subgraph:
        if nodes not in self._subgraphs:
            self._subgraphs[nodes] = Subgraph(self.model, nodes)
        return self._subgraphs[nodes]


def _digest(samples: Mapping[str, Array]) -> str:
    """A hash of the samples' content, where there are any: on other inputs other conversions may err."""
    if not samples:
        return ""
    hasher = hashlib.sha256()
    for name, array in sorted(samples.items()):
        hasher.update(f"{name}{array.dtype}{array.shape}".encode() + array.tobytes())
    return f" on {hasher.hexdigest()}"


def _per_value(variant: Variant) -> str:
    """The variant with the storage of each input and output."""
    sides = [" ".join(map(str, side)) for side in (variant.inputs, variant.outputs)]
    return f"[{sides[0]} -> {sides[1]}; {variant.split}]"


def _from_environment() -> int | None:
    text = os.environ.get(MEMORY_VARIABLE, "")
    return int(text) if text.isdigit() else None
