"""Which candidate was chosen is told by what it is, not by what it is called."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collage.report.report import CandidateReport, NodeReport, Report
from collage.schedule.region import Region

CHOSEN = CandidateReport((0,), "engine", "p", split="rows", cost_us=1.0, noise_us=0.1, threads=2)
REGION = Region("engine", ("op",), (0,), ("node",), (), (), split="rows", threads=2, cost_us=1.0)


def explained(region: Region, *candidates: CandidateReport) -> list[tuple[str, str]]:
    """Split and verdict of each candidate, as JSON has them."""
    nodes = (NodeReport("op", "node", "Op"),)
    report = Report(
        *("made up", "here", 2, 1.0, 1.0, 0.0, 0.0, 0, 0.0, 0.0, 0.0, {}, {}),
        nodes=nodes,
        candidates=candidates,
    )
    (node,) = Report.from_json(report.to_json()).explain([region])
    return [(each["split"], each["verdict"]) for each in node["candidates"]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"threads": 1}, "rows, one thread"),
        ({"original": True}, "as written"),
        ({"original": True, "profile": "no spinning"}, "as written, no spinning"),
        ({"split": "columns"}, "columns"),
        ({"precision": "bf16"}, "rows, bf16"),
    ],
)
def test_only_the_same_candidate_is_chosen(change: dict[str, object], words: str) -> None:
    other = replace(CHOSEN, cost_us=1.5, verdict="0.5 us slower", **change)  # type: ignore[arg-type]
    assert explained(REGION, CHOSEN, other) == [("rows", "chosen"), (words, "0.5 us slower")]
    region = replace(REGION, cost_us=1.5, **change)  # type: ignore[arg-type]
    assert explained(region, CHOSEN, other)[1] == (words, "chosen")


def test_a_split_that_is_called_like_another_candidate_is_not_taken_for_it() -> None:
    namesake = replace(CHOSEN, split="as written")
    original = replace(CHOSEN, split="", original=True, cost_us=2.0)
    region = replace(REGION, split="as written")
    assert [verdict for _, verdict in explained(region, namesake, original)] == ["chosen", "not chosen"]
