"""Making offers of matches, and candidates of offers and their measurements."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from collage.backends.base import NOT_DIRECT, VIEW, Backend, UnsupportedError
from collage.frontend.model import Model
from collage.frontend.subgraph import Subgraph, edges
from collage.graph.storage import PLAIN, STORAGES, Storage
from collage.graph.views import free_storages
from collage.kernel.options import BuildOptions, Variant
from collage.kernel.transform import LayoutTransform
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.results import Measurement, Outcome, Rejection, Slower
from collage.patterns.match import Match, RejectedMatch
from collage.search.candidate import Candidate
from collage.search.connected import connected
from collage.search.errors import ErrorModel, kind_of, unmeasured
from collage.search.inner_errors import InnerErrors
from collage.search.transforms import ValueTransform

NOISE_FLOOR = 0.02
"""The least noise of a measurement, as a share of it: fresh processes differ by 2-5 %, which no repeat shows."""


@dataclass(frozen=True)
class Offer:
    """A request for a measurement, and the name of the pattern that it came from."""

    request: CandidateRequest
    pattern: str


def offers_of(
    model: Model,
    matches: Sequence[Match],
    backends: Mapping[str, Backend],
    build: BuildOptions,
) -> tuple[list[Offer], list[RejectedMatch]]:
    """An offer for each variant of each match, and the matches for which the backend offers no variant.

    With ``build.direct`` there is no variant whose algorithm reassociates, even if its backend offers one, and with
    ``build.exact`` none of a backend that does not declare ``keeps_nan``. Views are left out, because they run nothing
    that could be measured, and so is reduced precision that gains nothing where it stands (see ``search.connected``).
    """
    found: list[Offer] = []
    refused: list[RejectedMatch] = []
    for match in matches:
        if match.backend == VIEW:
            continue
        reason = "its backend offers no variant"
        try:
            backend, subgraph = backends[match.backend], Subgraph(model, match.nodes)
            variants = backend.variants(subgraph, build)
            if build.exact and not backend.keeps_nan:
                variants, reason = (), "its backend does not keep NaN, and exact kernels are asked for"
            elif build.direct and any(backend.reassociates(subgraph, each) for each in variants):
                variants = [each for each in variants if not backend.reassociates(subgraph, each)]
                reason = NOT_DIRECT
        except UnsupportedError as error:
            variants, reason = (), str(error)
        except Exception as error:  # a third party's code
            variants, reason = (), f"{type(error).__name__}: {error}"
        found += [Offer(CandidateRequest(match.nodes, match.backend, each), match.pattern) for each in variants]
        if not variants:
            refused.append(RejectedMatch(match.nodes, match.backend, match.pattern, reason))
    views = [match.nodes for match in matches if match.backend == VIEW]
    kept = connected(model, (offer.request for offer in found), views)
    return [offer for offer in found if offer.request in kept], refused


def candidates_of(
    model: Model,
    offers: Sequence[Offer],
    views: Sequence[Match],
    outcomes: Mapping[CandidateRequest, Outcome],
    on_team: Collection[str],
    errors: ErrorModel | None = None,
) -> list[Candidate]:
    """Candidates of the offers that have an outcome, and of ``views``, which cost nothing and launch nothing.

    Offers that lost a race are ``outrun`` ones. No placement may run these.

    A view is offered in each storage in which it is free and which some kernel reads or writes. ``on_team`` are the
    backends whose kernels pay no context switch. Kernels of reduced precision are candidates only where ``errors``
    tells what they add to the error of the outputs.
    """
    storages = storages_of(offer.request.variant for offer in offers)
    inner = InnerErrors() if errors is None else InnerErrors.of(model, outcomes, errors)
    candidates: list[Candidate] = []
    for view in views:
        subgraph = Subgraph(model, view.nodes)
        for storage in free_storages(model.graph, subgraph.operators[0], storages):
            variant = Variant((storage,) * len(subgraph.inputs), (storage,) * len(subgraph.outputs))
            request = CandidateRequest(view.nodes, view.backend, variant)
            reads, writes = ports_of(model, request)
            candidates.append(
                Candidate(view.nodes, view.backend, 0.0, switches=0, variant=variant, reads=reads, writes=writes)
            )
    for offer in offers:
        request, outcome = offer.request, outcomes.get(offer.request)
        if request.variant.precision and errors is None:
            continue
        if outcome is not None and not isinstance(outcome, Rejection):
            switches = 0 if request.backend in on_team else 1
            least = inner.within(request)
            candidates.append(candidate_of(model, request, outcome, switches, errors, least))
    return candidates


def storages_of(variants: Iterable[Variant]) -> tuple[Storage, ...]:
    """The built-in storages, and the other ones that the variants name."""
    named = {storage for each in set(variants) for storage in (*each.inputs, *each.outputs)}
    return (*STORAGES, *sorted(named.difference(STORAGES)))


def ports_of(
    model: Model, request: CandidateRequest
) -> tuple[tuple[tuple[int, Storage], ...], tuple[tuple[int, Storage], ...]]:
    """The values that a request reads and writes in another storage than the plain one, by ascending id."""
    variant = request.variant
    if not (variant.inputs or variant.outputs):
        return (), ()
    inputs, outputs = edges(model, request.nodes)
    return _other_than_plain(inputs, variant.inputs), _other_than_plain(outputs, variant.outputs)


def candidate_of(
    model: Model,
    request: CandidateRequest,
    outcome: Measurement | Slower,
    switches: int = 1,
    errors: ErrorModel | None = None,
    least_error: float = 0.0,
) -> Candidate:
    """The candidate of a measured request; ``switches`` are the context switches that it pays for.

    Where it is of reduced precision, ``errors`` tells what it adds to the error of the outputs, and ``least_error``
    what the products inside it do (see ``inner_errors``). It is charged for what it reads and writes rounded, too.
    """
    reads, writes = ports_of(model, request)
    error = 0.0
    if request.variant.precision and errors is not None:
        own = outcome.max_error if isinstance(outcome, Measurement) else unmeasured(request.variant.precision)
        least_error = max(least_error, errors.of_rounding(reads), errors.of_rounding(writes))
        error = errors.added(edges(model, request.nodes)[1], own, kind_of(request), least_error)
    if isinstance(outcome, Slower):
        return Candidate(
            request.nodes,
            request.backend,
            outcome.least_us,
            NOISE_FLOOR * outcome.least_us,
            switches,
            request.variant,
            reads,
            writes,
            outrun=True,
            error=error,
        )
    return Candidate(
        request.nodes,
        request.backend,
        outcome.median_us,
        with_floor(outcome).noise_us,
        switches,
        request.variant,
        reads,
        writes,
        outcome.finite_only,
        error=error,
    )


def with_floor(outcome: Measurement) -> Measurement:
    """The measurement, with at least the noise that every measurement has (``NOISE_FLOOR``)."""
    return replace(outcome, noise_us=max(outcome.noise_us, NOISE_FLOOR * outcome.median_us))


def _other_than_plain(values: Sequence[int], storages: Sequence[Storage]) -> tuple[tuple[int, Storage], ...]:
    if not storages:
        return ()
    pairs = zip(values, storages, strict=True)
    return tuple(sorted((value, storage) for value, storage in pairs if storage != PLAIN))


def possible_transforms(model: Model, candidates: Sequence[Candidate]) -> list[ValueTransform]:
    """The layout transforms that a placement of these candidates may need, each once."""
    graph = model.graph
    given: dict[int, set[Storage]] = {}
    wanted: dict[int, set[Storage]] = {}
    for candidate in candidates:
        for value, storage in candidate.writes:
            given.setdefault(value, set()).add(storage)
        for value, storage in candidate.reads:
            wanted.setdefault(value, set()).add(storage)
    found: list[ValueTransform] = []
    for value in sorted(given.keys() | wanted.keys()):
        for source in sorted({PLAIN, *given.get(value, ())}):
            for target in sorted({PLAIN, *wanted.get(value, ())}):
                if source != target:
                    found.append((value, LayoutTransform(graph.type_of(value), source, target)))
    return found
