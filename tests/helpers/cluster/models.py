"""What the tests of crews share: a model, jobs about it, and backends that take their time."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from collage.backends.base import Backend
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Array
from collage.kernel.kernel import Call, Kernel
from collage.kernel.options import BuildOptions
from collage.measure.crew import Job, Part
from collage.measure.measured_model import MeasuredModel
from collage.measure.settings import CandidateLimits, MeasureSettings
from collage.measure.worker.protocol import CandidateRequest
from collage.measure.worker.session import WorkerSession
from collage.patterns.context import MatchContext
from collage.patterns.match import Found
from tests.helpers.backends_for_tests import NumpyBackend, chain_model

SINGLES = [CandidateRequest((n,), "numpy") for n in range(4)]
PAIRS = [
    CandidateRequest((0, 1), "numpy"),
    CandidateRequest((1, 2), "numpy"),
    CandidateRequest((0, 1, 2), "numpy"),
]


def session_of(*backends: Backend, time_s: float = 30.0) -> WorkerSession:
    """A session for x → add → relu → tanh → multiply, on one thread."""
    named = {backend.name: backend for backend in backends or (NumpyBackend(),)}
    settings = MeasureSettings(
        named, dict.fromkeys(named, "1"), BuildOptions(threads=1), "test", limits=CandidateLimits(time_s)
    )
    return WorkerSession(MeasuredModel(chain_model()), settings)


class Slow(NumpyBackend):
    """Building a kernel takes a while, and leaves a mark in a folder: the process of the slot that asked for it."""

    name: ClassVar[str] = "slow"

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder, self.seconds = folder, seconds

    def codegen(self, subgraph: Subgraph, options: BuildOptions) -> bytes:
        (self.folder / f"{'-'.join(map(str, subgraph.nodes))}.{_slot()}").touch()
        time.sleep(self.seconds)
        return super().codegen(subgraph, options)

    def builders(self) -> dict[str, list[int]]:
        """For each region that was begun, the processes of the slots that did so."""
        found: dict[str, list[int]] = {}
        for path in sorted(self.folder.iterdir()):
            nodes, _, parent = path.name.partition(".")
            found.setdefault(nodes, []).append(int(parent))
        return found


def _slot() -> int:
    """The process of the Ray actor above this one; another process that forks workers may be between them."""
    process = os.getppid()
    while process > 1 and not Path(f"/proc/{process}/cmdline").read_bytes().startswith(b"ray::"):
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return process


class Late(Slow):
    """Slow in another folder."""

    name: ClassVar[str] = "late"


class MadeUp(NumpyBackend):
    """Kernels for certain regions, each of which takes a made-up time."""

    def __init__(self, name: str, milliseconds: Mapping[tuple[int, ...], float]) -> None:
        self.name = name  # type: ignore[misc]
        self.milliseconds = milliseconds

    def sources(self, options: BuildOptions) -> Sequence[Any]:
        return (_Regions(tuple(self.milliseconds)),)

    def codegen(self, subgraph: Subgraph, options: BuildOptions) -> bytes:
        return pickle.dumps((super().codegen(subgraph, options), self.milliseconds[subgraph.nodes]))

    def load(self, artifact: bytes, options: BuildOptions) -> Kernel:
        inner, milliseconds = pickle.loads(artifact)
        return _Waits(super().load(inner, options), milliseconds)


@dataclass(frozen=True)
class _Regions:
    regions: tuple[tuple[int, ...], ...]

    def find(self, context: MatchContext) -> Iterator[Found]:
        return (Found(nodes, "made up") for nodes in self.regions)


class _Waits(Kernel):
    def __init__(self, kernel: Kernel, milliseconds: float) -> None:
        self.kernel, self.milliseconds = kernel, milliseconds

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        call = self.kernel.bind(inputs, outputs)

        def waits() -> None:
            call()
            time.sleep(self.milliseconds / 1e3)

        return waits


class LocalCrew:
    """The session's own worker, which does one job after another."""

    def __init__(self, session: WorkerSession) -> None:
        self._session = session

    def run(self, jobs: Sequence[Job[Part]]) -> Iterator[Part]:
        """Each job's result, in order."""
        for job in jobs:
            yield from job.run(self._session)

    def close(self) -> None:
        """The session ends its worker itself."""
