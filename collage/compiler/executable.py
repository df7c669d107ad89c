"""A plan that is ready to be run: its launch list, and what each launch runs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from collage.compiler.plan import Plan
from collage.frontend.model import Model
from collage.frontend.subgraph import Subgraph
from collage.graph.storage import Storage
from collage.kernel.target import Target
from collage.measure_db.database import NetworkKey
from collage.measure_db.plan_protocol import Plan as WorkerPlan
from collage.measure_db.plan_protocol import PlanKernel
from collage.schedule.program import Program
from collage.search.candidate import Candidate
from collage.search.transforms import PlacedTransform


@dataclass(frozen=True)
class Executable:
    """A plan with its launch list; ``launches`` says what each of ``program.launches`` is.

    ``digests`` identify its regions across models and processes. ``versions`` are the library versions of the backends
    it uses. ``kernels`` are what the launches run, and ``stored`` has the value and storage of buffers that are no
    plain values. ``guarded`` tells that the model's inputs are scanned, whatever the kernels are.
    """

    plan: Plan
    program: Program
    launches: Sequence[Candidate | PlacedTransform]
    digests: tuple[str, ...]
    versions: Mapping[str, str]
    kernels: tuple[PlanKernel, ...]
    stored: Mapping[int, tuple[int, Storage]]
    guarded: bool = False

    @property
    def label(self) -> str:
        """What the report calls it."""
        return self.plan.label

    @property
    def predicted_us(self) -> float:
        """The time that its placement is predicted to take."""
        return self.plan.placement.predicted_us

    @cached_property
    def job(self) -> WorkerPlan:
        """For the worker."""
        return WorkerPlan(self.program, self.kernels, self.stored)

    @property
    def concurrent(self) -> bool:
        """Whether some launches run on streams."""
        return self.program.ordered.schedule.count > 0

    @property
    def tuned(self) -> bool:
        """Whether an engine has other settings than the usual ones."""
        return any(region.profile for region in self.program.launches)

    @property
    def digest(self) -> str:
        """Hash of the regions and their backends, in launch order."""
        return hashlib.sha256("\n".join(self.digests).encode()).hexdigest()[:32]


def network_key(
    executable: Executable,
    together: Sequence[Executable],
    model: Model,
    target: Target,
) -> NetworkKey:
    """Timings of one interleaved run belong together: the key names all that ran in it."""
    everything = Subgraph(model, tuple(range(len(model.graph.nodes))))
    others = hashlib.sha256("\n".join(sorted(each.digest for each in together)).encode()).hexdigest()[:16]
    used = {name: version for each in together for name, version in each.versions.items()}
    return NetworkKey(
        everything.digest if model.graph.nodes else "empty",
        f"{executable.digest} of {others}",
        target.threads,
        target.measured_on,
        " ".join(f"{name}={version}" for name, version in sorted(used.items())),
    )
