"""The ledger of a compile: what measuring and runs have shown. Measuring adds to it, and proposers read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from collage.backends.base import VIEW
from collage.compiler.plan import Placed, Whole
from collage.errors import NoPlacementError
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.results import IN_NETWORK, Measurement, Outcome, Rejection, RejectionKind
from collage.patterns.match import Match, RejectedMatch
from collage.report.report import ErrorReport, GraphLevelReport
from collage.search.candidate import Candidate
from collage.search.candidates import Offer
from collage.search.errors import ErrorBudget
from collage.search.network_costs import UNCALIBRATED, NetworkCosts
from collage.search.transforms import PlacedTransform, ValueTransform

_MOST_FAULTS = 5
"""A backend is left out if so many of its kernels fail in networks, since each of them costs a worker."""


@dataclass
class Known:
    """What is known of one model.

    - ``matches``, ``refused``, ``offers``: subgraphs that backends can run, that they refuse, and what can be measured.
    - ``outcomes``: of the offers that were measured. ``epsilon_us``: the cost of a switch between libraries (Eq. 2.2).
    - ``costs``: times in the network. ``ran``: the plans that have run, by ``Placed.alike``.
    - ``blamed``: a backend that seems to be the reason why a plan fails as a whole.
    - ``errors``: the error budget that samples have led to so far.
    - ``single_threaded``: pattern and outcome of kernels that were built for one thread, to run beside others.
    - ``notes``: for the user. ``failures``: plans and kernels that failed in networks, with the reasons.
    - ``tolerance``: what became of it. ``graph_level``: how that search went.
    - ``search_s``: the seconds of searches, without measurements.
    """

    matches: Sequence[Match] = ()
    refused: Sequence[RejectedMatch] = ()
    offers: list[Offer] = field(default_factory=list)
    outcomes: dict[CandidateRequest, Outcome] = field(default_factory=dict)
    epsilon_us: float = 0.0
    costs: NetworkCosts = UNCALIBRATED
    ran: set[tuple[object, ...]] = field(default_factory=set)
    blamed: str | None = None
    errors: ErrorBudget | None = None
    single_threaded: dict[CandidateRequest, tuple[str, Outcome]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    tolerance: ErrorReport | None = None
    graph_level: GraphLevelReport | None = None
    search_s: float = 0.0
    engine_us: dict[Whole, float] = field(default_factory=dict)
    """The times of engines on the whole model in microseconds."""
    engines_refused: dict[Whole, str] = field(default_factory=dict)
    """The reasons against engines on the whole model."""
    key: str | None = None
    """What identifies the compile in the database, if it may be recalled (``finished_key``)."""
    transforms_us: dict[ValueTransform, float] = field(default_factory=dict)
    """The costs of layout transforms alone, with their context switches, in microseconds."""
    suffix: str = ""
    """The engine that runs the model's dynamic suffix fastest, as far as is known."""
    no_placement: NoPlacementError | None = None
    """Why a search has found no placement."""

    @property
    def views(self) -> list[Match]:
        """The matches of views, which cost nothing and launch nothing."""
        return [match for match in self.matches if match.backend == VIEW]

    @property
    def tunings(self) -> Mapping[CandidateRequest, str]:
        """The records of ``Tuner.tune`` by request."""
        return {
            request: outcome.tuning
            for request, outcome in self.outcomes.items()
            if isinstance(outcome, Measurement) and outcome.tuning
        }

    def note(self, *texts: str) -> None:
        """Add notes for the user that are not there yet."""
        self.notes += [text for text in texts if text not in self.notes]

    def fail(self, label: str, reason: str) -> None:
        """A plan fails for this reason."""
        if (text := f"{label}: {reason}") not in self.failures:
            self.failures.append(text)

    @property
    def told(self) -> tuple[str, ...]:
        """What the user is told: notes and failures."""
        return *self.notes, *(f"{each}; not used" for each in self.failures)

    def offer(self, offers: Iterable[Offer]) -> None:
        """Add offers that are new."""
        there = {each.request for each in self.offers}
        self.offers += [each for each in offers if each.request not in there]

    def learn(self, plan: Placed, launches: Sequence[Candidate | PlacedTransform], us: Sequence[float]) -> None:
        """The plan's launches have taken these times in the network."""
        self.ran.add(plan.alike)
        if plan.streams is None:
            self.costs = self.costs.learn(self.outcomes, launches, us, self.epsilon_us)

    @property
    def left_out(self) -> set[str]:
        """The backends that no placement may use: with several kernels that failed in networks, or ``blamed``."""
        failed = {
            (request.backend, request.nodes, request.variant)
            for request, outcome in self.outcomes.items()
            if isinstance(outcome, Rejection) and outcome.message.startswith(IN_NETWORK)
        }
        counts = Counter(backend for backend, *_ in failed)
        faulty = {name for name, count in counts.items() if count >= _MOST_FAULTS}
        return faulty if self.blamed is None else {*faulty, self.blamed}

    def timed(self, plan: Placed) -> Placed:
        """The plan with the times of its launches in the network, and their sum, as far as they are known."""
        if plan.streams is not None or plan.alike not in self.ran:
            return plan
        return replace(plan, placement=self.costs.of_mix(plan.placement, self.epsilon_us))

    def lack_of_memory(self) -> str:
        """What a kernel was told that had too little memory, or ""."""
        reasons = sorted(
            each.message
            for each in self.outcomes.values()
            if isinstance(each, Rejection) and each.kind is RejectionKind.MEMORY
        )
        return reasons[0] if reasons else ""
