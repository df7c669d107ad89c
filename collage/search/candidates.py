"""From matches and measurements to what the search chooses from, and to what the report says of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collage.measure_db.results import Measurement, Outcome
from collage.patterns.match import Match, RejectedMatch
from collage.report import CandidateReport
from collage.search.placement import Candidate

NOISE_FLOOR = 0.02
"""Least noise of a measurement, as a share of it: fresh processes differ by 2-5 %, which no repeat shows."""

_Key = tuple[tuple[int, ...], str]


@dataclass(frozen=True)
class CandidateSet:
    """The candidates with a cost, and a report of all that was considered."""

    candidates: tuple[Candidate, ...]
    reports: tuple[CandidateReport, ...]


def collect(
    matches: Sequence[Match],
    outcomes: Mapping[_Key, Outcome],
    rejected: Sequence[RejectedMatch],
    free: frozenset[str],
) -> CandidateSet:
    """Candidates of the measured matches.

    ``outcomes`` maps (nodes, backend) to what measuring gave; backends in ``free`` cost nothing and launch
    nothing, and are not measured.
    """
    candidates: list[Candidate] = []
    reports: list[CandidateReport] = []
    for match in matches:
        if match.backend in free:
            candidates.append(Candidate(match.nodes, match.backend, 0.0, launches=0))
            reports.append(CandidateReport(match.nodes, match.backend, match.pattern, 0.0, 0.0))
            continue
        outcome = outcomes[match.nodes, match.backend]
        if isinstance(outcome, Measurement):
            noise_us = max(outcome.noise_us, NOISE_FLOOR * outcome.median_us)
            candidates.append(Candidate(match.nodes, match.backend, outcome.median_us, noise_us))
            reports.append(
                CandidateReport(
                    match.nodes, match.backend, match.pattern, outcome.median_us, outcome.noise_us
                )
            )
        else:
            reason = f"{outcome.kind.value}: {outcome.message}"
            reports.append(CandidateReport(match.nodes, match.backend, match.pattern, reason=reason))
    for each in rejected:
        reports.append(
            CandidateReport(each.nodes, each.backend, each.pattern, reason=f"no match: {each.reason}")
        )
    return CandidateSet(tuple(candidates), tuple(reports))
