"""The kernels of plans: their artifacts, which were measured or are made now, and their rejection."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property

from collage.backends.base import VIEW
from collage.core.library_text import library_text
from collage.kernel.artifacts import Artifacts
from collage.kernel.frames import Artifact
from collage.kernel.transform import LayoutTransform
from collage.measure.request_keys import RequestKeys
from collage.measure.worker.plan_protocol import PlanKernel
from collage.measure.worker.protocol import AS_LOADED, Ask, artifact_folder, plan_folder
from collage.measure.worker.session import WorkerSession
from collage.measure_db.database import Database, KernelKey
from collage.measure_db.results import Outcome, Rejection, RejectionKind


class PlanKernels:
    """The kernels of one model's plans. Methods raise MeasurementError when the disk is full."""

    def __init__(self, session: WorkerSession, database: Database) -> None:
        self._session = session
        self._measured = session.measured
        self._settings = session.settings
        self._keys = RequestKeys(session.measured, session.settings)
        self._database = database

    @cached_property
    def _artifacts(self) -> Artifacts:
        folder = artifact_folder(self._session.folder)
        return Artifacts(folder, self._measured.model.graph.constants)

    def load(self, key: str) -> Artifact:
        """The artifact with that key (``PlanKernel.key``). Raises KeyError where it was neither measured nor made."""
        return self._artifacts.open(key)

    def known(self, kernels: Collection[PlanKernel]) -> dict[PlanKernel, Outcome]:
        """The recorded outcomes of the kernels by themselves, on the threads that they run on. Views have none."""
        on_threads: dict[int, RequestKeys] = {}
        keys: dict[PlanKernel, KernelKey] = {}
        for kernel in kernels:
            what, threads = kernel.what, kernel.options.threads
            if threads not in on_threads:
                on_threads[threads] = RequestKeys(self._measured, self._settings.on_threads(threads))
            if isinstance(what, LayoutTransform):
                keys[kernel] = on_threads[threads].transform_key(what)
            elif what.backend != VIEW:
                keys[kernel] = on_threads[threads].key(what)
        found = self._database.get(keys.values(), lambda _: self._settings.limits.time_s)
        return {
            kernel: found[key]
            if isinstance(kernel.what, LayoutTransform)
            else self._measured.usable(kernel.what, found[key])
            for kernel, key in keys.items()
            if key in found
        }

    def make(self, kernel: PlanKernel) -> Rejection | None:
        """Make sure that the kernel's artifact is there, and return None, or the reason why it cannot be had.

        A kernel that an earlier compile measured is built again in the worker. The plan that it is for checks it.
        """
        if kernel.key in self._artifacts:
            return None
        what = kernel.what
        if isinstance(what, LayoutTransform):
            return self._make_transform(kernel, what)
        if what.backend == VIEW:
            view = self._settings.backends[VIEW]
            artifact = view.codegen(self._measured.subgraph(what.nodes), kernel.options)
            self._artifacts.keep(kernel.key, artifact)
            return None
        message = Ask("make", (kernel,), self._settings.limits.time_s)
        made = self._session.ask(message, what.backend, self._settings.threads)
        return made if isinstance(made, Rejection) else None

    def _make_transform(self, kernel: PlanKernel, transform: LayoutTransform) -> Rejection | None:
        try:
            artifact = self._keys.transform_maker(transform).codegen_transform(transform, kernel.options)
        except Exception as error:  # a third party's backend may raise anything
            text = f"codegen: {type(error).__name__}: {library_text(error)}"
            return Rejection(RejectionKind.FAILED, text)
        self._artifacts.keep(kernel.key, artifact)
        return None

    def make_here(self, kernel: PlanKernel) -> None:
        """Make sure that the kernel's artifact is there; where it is missing it is built in this process.

        An earlier compile has measured it, run it in its plan and handed it over. Raises what the backend raises.
        """
        if kernel.key in self._artifacts:
            return
        request = kernel.what
        if isinstance(request, LayoutTransform) or request.backend == VIEW:
            self.make(kernel)
            return
        backend, subgraph = self._settings.backends[request.backend], self._measured.subgraph(request.nodes)
        self._artifacts.keep(kernel.key, backend.codegen(subgraph, kernel.options), subgraph.constants)

    def reject(self, kernel: PlanKernel, rejection: Rejection) -> None:
        """Record that the kernel must not be used, though it was measured."""
        keys = RequestKeys(self._measured, self._settings.on_threads(kernel.options.threads))
        if isinstance(kernel.what, LayoutTransform):
            self._database.put(keys.transform_key(kernel.what), rejection, str(kernel.what.kind))
            return
        text = str(self._measured.subgraph(kernel.what.nodes))
        self._database.put(keys.key(kernel.what), rejection, text)

    def keep_as_loaded(self) -> None:
        """Write the model as it was loaded to where the worker looks for it, unless it is there."""
        path = plan_folder(self._session.folder) / AS_LOADED
        if self._measured.as_loaded is not None and self._measured.guards and not path.exists():
            path.parent.mkdir(exist_ok=True)
            self._measured.as_loaded.save(path)
