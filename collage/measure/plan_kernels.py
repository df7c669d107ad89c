"""The kernels of plans: their artifacts, which were measured or are made now, and their rejection."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property

from collage.backends.base import VIEW
from collage.backends.layout import maker_of
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
        self._keys: dict[int, RequestKeys] = {}
        """By the number of threads."""
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
        keys = {each: self._key(each) for each in kernels if not each.is_view}
        found = self._database.get(keys.values(), lambda _: self._settings.limits.time_s)
        return {
            kernel: found[key]
            if isinstance(kernel.what, LayoutTransform)
            else self._measured.usable(kernel.what, found[key])
            for kernel, key in keys.items()
            if key in found
        }

    def _key(self, kernel: PlanKernel) -> KernelKey:
        threads = kernel.options.threads
        if threads not in self._keys:
            self._keys[threads] = RequestKeys(self._measured, self._settings.on_threads(threads))
        keys, what = self._keys[threads], kernel.what
        return keys.transform_key(what) if isinstance(what, LayoutTransform) else keys.key(what)

    def make(self, kernel: PlanKernel) -> Rejection | None:
        """Make sure that the kernel's artifact is there, and return None, or the reason why it cannot be had.

        A kernel that an earlier compile measured is built again in the worker. The plan that it is for checks it.
        """
        if kernel.key in self._artifacts:
            return None
        what = kernel.what
        if isinstance(what, LayoutTransform):
            return self._make_transform(kernel, what)
        if kernel.is_view:
            view = self._settings.backends[VIEW]
            artifact = view.codegen(self._measured.subgraph(what.nodes), kernel.options)
            self._artifacts.keep(kernel.key, artifact)
            return None
        message = Ask("make", (kernel,), self._settings.limits.time_s)
        made = self._session.ask(message, what.backend, self._settings.threads)
        return made if isinstance(made, Rejection) else None

    def _make_transform(self, kernel: PlanKernel, transform: LayoutTransform) -> Rejection | None:
        try:
            maker = maker_of(transform, self._settings.backends)
            assert maker is not None
            artifact = maker.codegen_transform(transform, kernel.options)
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
        if isinstance(request, LayoutTransform) or kernel.is_view:
            self.make(kernel)
            return
        backend, subgraph = self._settings.backends[request.backend], self._measured.subgraph(request.nodes)
        self._artifacts.keep(kernel.key, backend.codegen(subgraph, kernel.options), subgraph.constants)

    def reject(self, kernel: PlanKernel, rejection: Rejection) -> None:
        """Record that the kernel must not be used, though it was measured."""
        what = kernel.what
        about = what.kind if isinstance(what, LayoutTransform) else self._measured.subgraph(what.nodes)
        self._database.put(self._key(kernel), rejection, str(about))

    def keep_as_loaded(self) -> None:
        """Write the model as it was loaded to where the worker looks for it, unless it is there."""
        path = plan_folder(self._session.folder) / AS_LOADED
        if self._measured.as_loaded is not None and self._measured.guards and not path.exists():
            path.parent.mkdir(exist_ok=True)
            self._measured.as_loaded.save(path)
