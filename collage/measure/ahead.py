"""Which candidates are built ahead, while the worker measures others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from collage.backends.base import Backend
from collage.backends.tuner import Tuner
from collage.kernel.options import BuildOptions
from collage.measure.worker.builder import Builder
from collage.measure.worker.plan_protocol import PlanKernel
from collage.measure.worker.protocol import CandidateRequest


class Ahead:
    """Keeps a builder busy with candidates of the regions that the worker has not come to."""

    def __init__(
        self,
        builder: Builder,
        regions: Sequence[Sequence[CandidateRequest]],
        backends: Mapping[str, Backend],
        options: Callable[[CandidateRequest], BuildOptions],
    ) -> None:
        """The regions are those that are measured, in order, and ``options`` are those of their candidates."""
        self._builder = builder
        self._regions = regions
        self._backends = backends
        self._options = options
        self._next = 0
        self._passed: set[CandidateRequest] = set()
        self._coming = self._in_order()

    def come_to(self, region: int, request: CandidateRequest) -> None:
        """The worker comes to a candidate of the region with that number."""
        self._next = max(self._next, region + 1)
        self._passed.add(request)
        self._builder.offer(self._coming)
        self._builder.claim(PlanKernel(request, self._options(request)))

    def _in_order(self) -> Iterator[PlanKernel]:
        while self._next < len(self._regions):
            region = self._regions[self._next]
            self._next += 1
            for request in region:
                if request not in self._passed and self._buildable(request):
                    yield PlanKernel(request, self._options(request))

    def _buildable(self, request: CandidateRequest) -> bool:
        """Whether the candidate may be built elsewhere."""
        backend = self._backends[request.backend]
        tuned = self._options(request).tune_trials and isinstance(backend, Tuner)
        return backend.ahead_s > 0 and not request.original and not tuned
