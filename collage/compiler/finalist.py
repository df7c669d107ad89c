"""A placement that is ready to be run: its launch list, and what each launch runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from collage.frontend.model import Model
from collage.frontend.subgraph import Subgraph
from collage.graph.storage import Storage
from collage.kernel.target import Target
from collage.measure_db.database import NetworkKey
from collage.measure_db.plan_protocol import Plan, PlanKernel
from collage.runtime.parts import Parts
from collage.schedule.program import Program
from collage.search.candidate import Candidate
from collage.search.placement import Placement
from collage.search.transforms import PlacedTransform

SEQUENTIAL = "sequential"


@dataclass(frozen=True)
class Finalist:
    """A placement with its launch list; ``launches`` says what each of ``program.launches`` is.

    ``digests`` identify its regions across models and processes.

    ``versions`` are the library versions of the backends it uses. ``kernels`` are what the launches run, and ``stored``
    has the value and storage of buffers that are no plain values. ``build`` collects the kernels' artifacts.
    ``algorithm`` is what its schedule comes from.
    """

    label: str
    placement: Placement
    program: Program
    launches: Sequence[Candidate | PlacedTransform]
    digests: tuple[str, ...]
    versions: Mapping[str, str]
    kernels: tuple[PlanKernel, ...]
    stored: Mapping[int, tuple[int, Storage]]
    build: Callable[[], Parts]
    algorithm: str = SEQUENTIAL
    guarded: Callable[[], Finalist] | None = None
    """Makes the same with the model's inputs scanned, where they are not."""

    @cached_property
    def parts(self) -> Parts:
        """The module's parts; a plan of the finalist was opened before."""
        return self.build()

    @cached_property
    def plan(self) -> Plan:
        """For the worker."""
        return Plan(self.program, self.kernels, self.stored)

    @property
    def side_by_side(self) -> bool:
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
    finalist: Finalist,
    all_finalists: Sequence[Finalist],
    model: Model,
    target: Target,
) -> NetworkKey:
    """Timings of one interleaved run belong together: the key names all that ran in it."""
    everything = Subgraph(model, tuple(range(len(model.graph.nodes))))
    rivals = hashlib.sha256("\n".join(sorted(f.digest for f in all_finalists)).encode()).hexdigest()[:16]
    used = {name: version for f in all_finalists for name, version in f.versions.items()}
    return NetworkKey(
        everything.digest if model.graph.nodes else "empty",
        f"{finalist.digest} of {rivals}",
        target.threads,
        target.measured_on,
        " ".join(f"{name}={version}" for name, version in sorted(used.items())),
    )
