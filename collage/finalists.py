"""The last round: whole modules run against each other and checked against ONNX Runtime on the original.

The parts are timed in the same rounds as the whole: what a machine does that others use, too, changes by more from
one second to the next than the two differ.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
import onnx

from collage.backends.base import Backend
from collage.errors import NoPlacementError
from collage.final_check import FinalCheck
from collage.frontend.model import Model
from collage.frontend.random_inputs import random_inputs
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Array
from collage.measure_db.database import Database, NetworkKey
from collage.measure_db.effort import FULL
from collage.measure_db.interleave import ties
from collage.measure_db.timing import Timing
from collage.progress import Progress
from collage.runtime.executor import Executor
from collage.runtime.module import Parts, build_executor
from collage.runtime.profile import NotedRuns
from collage.schedule.program import Program
from collage.schedule.schedule import makespan_us
from collage.search.conversion import Conversion
from collage.search.placement import Candidate, Placement
from collage.target import Target

log = logging.getLogger(__name__)

SEQUENTIAL = "sequential"

_LAUNCHES = "launches_us"
_DRIFT = 0.1
"""Of the sum that the search had: what is off by more is told."""


@dataclass(frozen=True)
class Finalist:
    """A placement with its launch list; ``launches`` says what each of ``program.launches`` is.

    ``digests`` identify its regions across models and processes.

    ``versions`` are the library versions of the backends it uses. ``build`` compiles its kernels, which only
    those need that are run. ``algorithm`` is what its schedule comes from.
    """

    label: str
    placement: Placement
    program: Program
    launches: Sequence[Candidate | Conversion]
    digests: tuple[str, ...]
    versions: Mapping[str, str]
    build: Callable[[], Parts]
    algorithm: str = SEQUENTIAL

    @cached_property
    def parts(self) -> Parts:
        """The module's parts, built on first use."""
        return self.build()

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


@dataclass(frozen=True)
class Verdict:
    """The winner with its executor, everybody's timing, and how far the winner's outputs are off."""

    winner: Finalist
    executor: Executor
    timings: Mapping[str, Timing]
    max_abs_error: float
    relative_error: float
    measurements_made: int
    notes: tuple[str, ...] = field(default=())


def choose(
    finalists: Sequence[Finalist],
    original: onnx.ModelProto,
    model: Model,
    backends: Mapping[str, Backend],
    target: Target,
    database: Database,
    progress: Callable[[Progress], None],
    seed: int,
) -> Verdict:
    """Time the finalists in one interleaved run (or recall it) and hand over the best whose numbers are right.

    Of those that tie with the best the simplest wins (see ``_ranked``). Raises NoPlacementError when none
    agrees with ONNX Runtime on the original model.
    """
    inputs = random_inputs(model, np.random.default_rng(seed))
    keys = {f.label: network_key(f, finalists, model, target) for f in finalists}
    timings: dict[str, Timing] = {}
    for label, key in keys.items():
        known = database.get_network(key)
        if known is not None:
            timings[label] = known
    executors: dict[str, Executor] = {}
    launches_us = {label: database.get_fact(_LAUNCHES, str(key)) for label, key in keys.items()}
    made = 0
    if len(timings) < len(finalists):
        progress(Progress("compare", 0, 1, ", ".join(f.label for f in finalists)))
        for finalist in finalists:
            executors[finalist.label] = build_executor(finalist.parts, backends)
        calls = {label: _run(executor, inputs) for label, executor in executors.items()}
        noted = {label: NotedRuns(executor, inputs) for label, executor in executors.items()}
        timings = FULL.compare(calls, after=noted)
        with database.together():
            for label, timing in timings.items():
                database.put_network(keys[label], timing, f"{model.name}: {label}")
                launches_us[label] = [round(each, 3) for each in noted[label].launches_us()]
                database.put_fact(_LAUNCHES, str(keys[label]), launches_us[label])
        made = len(timings)
    progress(Progress("check", 0, 1))
    check = FinalCheck.of(original, model, seed)
    notes: list[str] = []
    for finalist in _ranked(finalists, timings):
        executor = executors.get(finalist.label) or build_executor(finalist.parts, backends)
        found = check.look(executor.run, partial(getattr, executor, "careful_runs"))
        if not found.complaint:
            winner = _with_times(finalist, launches_us[finalist.label])
            before, after = finalist.placement.predicted_us, winner.placement.predicted_us
            if abs(after - before) > _DRIFT * before:
                notes.append(
                    f"the search reckoned with {before:.1f} us; in the last comparison the parts took {after:.1f} us"
                )
            return Verdict(winner, executor, timings, found.absolute, found.relative, made, tuple(notes))
        notes.append(f"{finalist.label}: {found.complaint}; not used")
        log.warning("%s", notes[-1])
    raise NoPlacementError("no placement agrees with ONNX Runtime on the original model: " + "; ".join(notes))


def _with_times(finalist: Finalist, launches_us: object) -> Finalist:
    """The finalist with the times that its launches took in their places, where these are known."""
    program = finalist.program
    if not isinstance(launches_us, list) or len(launches_us) != len(program.launches):
        return finalist
    times = [float(each) for each in launches_us]
    found = {region: replace(region, cost_us=us) for region, us in zip(program.launches, times, strict=True)}
    timed = replace(
        program,
        regions=tuple(found.get(each, each) for each in program.regions),
        launches=tuple(found[each] for each in program.launches),
    )
    whole = makespan_us(program.ordered.dag, program.ordered.schedule, times)
    return replace(
        finalist,
        placement=replace(finalist.placement, predicted_us=whole),
        program=timed,
        build=lambda: replace(finalist.parts, program=timed),
    )


def _run(executor: Executor, inputs: Sequence[Array]) -> Callable[[], None]:
    def run() -> None:
        executor.run(inputs)

    return run


def _ranked(finalists: Sequence[Finalist], timings: Mapping[str, Timing]) -> list[Finalist]:
    """The best first; those that tie with it before it when they are simpler.

    Simpler are fewer regions, nothing side by side, and the usual settings.
    """
    by_time = sorted(finalists, key=lambda f: timings[f.label].median_us)
    alike = ties(timings)
    close = [f for f in by_time if f.label in alike]
    close.sort(key=lambda f: (len(f.program.launches), f.side_by_side, f.tuned, timings[f.label].median_us))
    return close + [f for f in by_time if f not in close]


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
