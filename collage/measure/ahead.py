"""Which candidates are built ahead, while the worker measures others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

from collage.backends.base import Backend
from collage.backends.tuner import Tuner
from collage.kernel.options import BuildOptions
from collage.measure.worker.builder import Builder
from collage.measure.worker.plan_protocol import PlanKernel
from collage.measure.worker.protocol import CandidateRequest


class Ahead:
    """Keeps builders busy with the candidates that the worker comes to next."""

    def __init__(
        self,
        start: Callable[[float], Builder | None],
        backends: Mapping[str, Backend],
        options: Callable[[CandidateRequest], BuildOptions],
    ) -> None:
        """``start`` gives the builder, if so many seconds of building are worth one."""
        self._start = start
        self._backends = backends
        self._options = options
        self._coming: deque[CandidateRequest] = deque()
        self._passed: set[CandidateRequest] = set()
        self._builder: Builder | None = None

    def expect(self, requests: Iterable[CandidateRequest], *, first: bool) -> None:
        """The worker comes to these candidates, before the others that are expected or after them."""
        known = {*self._passed} if first else {*self._passed, *self._coming}
        new = [each for each in dict.fromkeys(requests) if each not in known and self._is_buildable(each)]
        if first:
            self._coming = deque(dict.fromkeys([*new, *self._coming]))
        else:
            self._coming.extend(new)
        wanted_s = sum(self._backends[each.backend].ahead_s for each in self._coming)
        self._builder = self._start(wanted_s)
        self._offer()

    def come_to(self, request: CandidateRequest) -> None:
        """The worker comes to a candidate: nobody else builds it any more."""
        self._passed.add(request)
        self._offer()
        if self._builder is not None:
            self._builder.claim(PlanKernel(request, self._options(request)))

    def _offer(self) -> None:
        if self._builder is not None:
            self._builder.offer(self._next())

    def _next(self) -> Iterator[PlanKernel]:
        while self._coming:
            request = self._coming.popleft()
            if request not in self._passed:
                self._passed.add(request)
                yield PlanKernel(request, self._options(request))

    def _is_buildable(self, request: CandidateRequest) -> bool:
        backend = self._backends[request.backend]
        tuned = self._options(request).tune_trials and isinstance(backend, Tuner)
        return backend.ahead_s > 0 and not tuned
