"""A crew on a Ray cluster: an actor for each slot of each node, and jobs that go to whoever is free."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from types import ModuleType
from typing import Any, TypeVar

from collage.backends.base import Backend
from collage.cluster.address import ClusterAddress
from collage.cluster.connect import connected
from collage.cluster.nodes import ClusterNode, Nodes, find_nodes, pinned, why
from collage.cluster.shares import Shares
from collage.cluster.slot import SentSession, Slot
from collage.measure.crew import Job
from collage.measure.worker.serialisation import pickle_backend, pickle_message
from collage.measure.worker.session import WorkerSession

log = logging.getLogger(__name__)

Part = TypeVar("Part")

_STARTS = 3
"""How often a slot is started, the first time included."""
_START_LIMIT_S = 120.0
"""Seconds until a slot is ready. Its node may be busy with other work of the cluster for a while."""
_PATIENCE_S = 30.0
"""Seconds after which the user is told so."""
_TICK_S = 0.5
"""Seconds between two looks at the clock and at slots that do not get ready."""
_GOODBYE_S = 3.0


@dataclass
class _Place:
    """A slot of a node, with the actor that is there now."""

    node: ClusterNode
    number: int
    cpus: float
    actor: Any = None
    starts: int = 0
    deadline: float = 0.0
    ready: bool = False
    told: bool = False
    errand: int = -1
    """The number of what the actor does now, or -1."""
    fate: str = ""
    """Why it is not started again."""


@dataclass(eq=False)
class RayCrew:
    """Does jobs on the nodes. Actors are started with the first jobs, and stay until the crew is closed."""

    ray: ModuleType
    nodes: Sequence[ClusterNode]
    slots: int
    session: WorkerSession
    _places: list[_Place] = field(default_factory=list)
    _pending: dict[Any, tuple[_Place, int]] = field(default_factory=dict)
    """What was asked of actors: the place, and the errand's number, or -1 for getting ready."""
    _errands: Iterator[int] = field(default_factory=count)
    _sent: Any = None

    def run(self, jobs: Sequence[Job[Part]]) -> Iterator[Part]:
        """The parts of the jobs' results; see ``MeasuringCrew.run``.

        A job whose worker is lost is given to another one. When no worker is left, the rest of the jobs is lost.
        """
        if not self._places:
            self._set_up()
        shares = Shares([job.size for job in jobs])
        data = [pickle_message(job) for job in jobs]
        try:
            while shares.open:
                self._start_missing()
                self._hand_out(shares, data)
                if not self._pending:
                    log.warning("no worker of the cluster is left: %s", self._fate())
                    return
                try:
                    self.session.deadline.check()
                    ready, _ = self.ray.wait([*self._pending], num_returns=1, timeout=_TICK_S)
                except BaseException:  # the time is over, Ctrl-C, or another signal's exception
                    yield from self._unfinished(shares)
                    raise
                for ref in ready:
                    yield from self._take_in(ref, shares)
        finally:
            for place in self._places:
                self._cancel(place)

    def close(self) -> None:
        """End the actors with their worker processes."""
        actors = [place.actor for place in self._places if place.actor is not None]
        self._places, self._pending, self._sent = [], {}, None
        farewells = [actor.close.remote() for actor in actors]
        if farewells:
            self.ray.wait(farewells, num_returns=len(farewells), timeout=_GOODBYE_S)
        for actor in actors:
            self.ray.kill(actor)

    def _set_up(self) -> None:
        self._sent = self.ray.put(SentSession.of(self.session))  # travels to each node once
        pairs = [node for node in self.nodes for _ in range(self.slots)]
        self._places = [_Place(node, number, node.cpus / self.slots) for number, node in enumerate(pairs)]

    def _start_missing(self) -> None:
        """Start actors where there are none, and give up those that do not get ready."""
        now = time.monotonic()
        for place in self._places:
            late_s = now - place.deadline if place.actor is not None and not place.ready else -_START_LIMIT_S
            if late_s > 0:
                place.starts = _STARTS
                self._lose(place, f"it was not ready within {_START_LIMIT_S:g} s")
            elif late_s > _PATIENCE_S - _START_LIMIT_S and not place.told:
                place.told = True
                log.warning("node %s of the cluster is not ready yet; it may be busy with other work", place.node.name)
            if place.actor is None and not place.fate:
                self._start(place, now)

    def _start(self, place: _Place, now: float) -> None:
        place.starts += 1
        place.ready, place.deadline = False, now + _START_LIMIT_S
        options = {"num_cpus": place.cpus, "max_concurrency": 3, "scheduling_strategy": pinned(place.node)}
        place.actor = self.ray.remote(Slot).options(**options).remote()
        self._pending[place.actor.prepare.remote(self._sent)] = place, -1

    def _hand_out(self, shares: Shares, data: Sequence[bytes]) -> None:
        """Give each idle actor a job, as far as there are any."""
        for place in self._places:
            if not place.ready or place.errand >= 0:
                continue
            job = shares.take(place.number)
            if job is not None:
                place.errand = next(self._errands)
                self._pending[place.actor.run.remote(data[job], place.errand)] = place, place.errand

    def _take_in(self, ref: Any, shares: Shares) -> Iterator[Any]:
        """Act on an answer: an actor is ready, has done its job, or is lost."""
        place, errand = self._pending.pop(ref)
        try:
            answer = self.ray.get(ref)
        except Exception as error:  # the actor, its node or its worker process is gone, or something failed there
            if errand >= 0 and shares.lost(place.number) is not None:
                log.warning("a job is given up, with which %d workers were lost", shares.tries)
            self._lose(place, why(error))
            return
        if errand < 0:
            place.ready = True
            return
        place.errand = -1
        if shares.job_of(place.number) is not None:  # else it is a job of a run that was stopped
            shares.done(place.number)
            yield from answer

    def _unfinished(self, shares: Shares) -> Iterator[Any]:
        """The parts that are known of jobs which are not done."""
        held = [place for place in self._places if shares.job_of(place.number) is not None]
        asked = [place.actor.so_far.remote(place.errand) for place in held]
        ready, _ = self.ray.wait(asked, num_returns=len(asked), timeout=_GOODBYE_S) if asked else ([], [])
        for ref in ready:
            try:
                yield from self.ray.get(ref)
            except Exception as error:  # it is lost just now
                log.info("no parts: %s", why(error))

    def _cancel(self, place: _Place) -> None:
        if place.errand >= 0 and place.actor is not None:
            place.actor.cancel.remote(place.errand)

    def _lose(self, place: _Place, reason: str) -> None:
        """Put an actor away. It is started again, unless that was tried before."""
        log.warning("a worker on node %s of the cluster is lost: %s", place.node.name, reason)
        self.ray.kill(place.actor)
        self._pending = {ref: asked for ref, asked in self._pending.items() if asked[0] is not place}
        place.actor, place.ready, place.errand = None, False, -1
        if place.starts >= _STARTS:
            place.fate = reason

    def _fate(self) -> str:
        """Why there is no worker any more."""
        return "; ".join(dict.fromkeys(f"{each.node.name}: {each.fate}" for each in self._places))


@dataclass(frozen=True)
class ClusterCrews:
    """Makes crews whose workers are on the nodes of a cluster."""

    ray: ModuleType
    nodes: Nodes
    slots: int

    def crew(self, session: WorkerSession) -> RayCrew:
        """A crew for the session's model. Nothing is started before it gets jobs."""
        return RayCrew(self.ray, self.nodes.matching, self.slots, session)


@contextmanager
def on_cluster(address: ClusterAddress, backends: Mapping[str, Backend]) -> Iterator[ClusterCrews]:
    """Connect to the cluster inside the block, and find the nodes that can measure these backends for this machine.

    Raises ClusterError if the cluster cannot be reached or has no such node.
    """
    with connected(address) as ray:
        pickles = {name: pickle_backend(name, backend) for name, backend in backends.items()}
        yield ClusterCrews(ray, find_nodes(ray, address, pickles), address.slots)
