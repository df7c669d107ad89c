"""Orca's trace on a clock: times that are known by hand, and what few requests hide."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from scripts.lib.serving.clock import serve_on_clock
from scripts.lib.serving.clock_study import on_clock, rate_within
from scripts.lib.serving.iteration_costs import IterationCosts
from scripts.lib.serving.record import figures
from scripts.lib.serving.table import tables
from scripts.lib.serving.trace import Arrival, Lengths, poisson_trace

FLAT = IterationCosts((1, 8, 64), (10.0, 20.0, 100.0), (10.0, 18.0, 90.0), 128, 0.0, 0.0)
FORMS = "collage", "request-level", "whole-batches", "shortest-first"


def ends_ms(name: str, arrivals: list[Arrival], costs: IterationCosts = FLAT) -> list[float]:
    """When the last token of each request comes, in milliseconds."""
    return [1e3 * each.token_s[-1] for each in serve_on_clock(name, costs, arrivals, 8)]


@pytest.mark.parametrize("name", FORMS)
def test_one_request_takes_its_prompt_and_its_tokens(name: str) -> None:
    prompt = 18.0  # eight tokens without logits; a row of them is free in iterations of one token
    assert ends_ms(name, [Arrival((0,) * 8, 5)]) == [pytest.approx(prompt + 4 * 10.0)]


def test_a_row_of_logits_is_paid_for() -> None:
    costs = IterationCosts((1, 8), (10.0, 20.0), (7.0, 18.0), 128, 0.0, 0.0)
    assert ends_ms("collage", [Arrival((0,) * 8, 2)], costs) == [pytest.approx(18.0 + 3.0 + 10.0)]


def test_longer_contexts_take_longer() -> None:
    costs = IterationCosts((1, 64), (10.0, 100.0), (10.0, 90.0), 4, 0.5, 0.25)
    prompt = 90.0 + 64 * (0 - 4) * 0.25
    streams = sum(10.0 + (64 + i - 4) * 0.5 for i in range(3))
    assert ends_ms("collage", [Arrival((0,) * 64, 4)], costs) == [pytest.approx(prompt + streams)]


def test_forms_of_scheduling_differ_as_they_should() -> None:
    """Two prompts of 8 and 16 tokens, whose answers have 1 and 3; another request comes while they are computed."""
    arrivals = [Arrival((0,) * 8, 1), Arrival((0,) * 16, 3), Arrival((0,) * 8, 1, 0.001)]
    prompts = 90.0 + 2.0  # 24 tokens in a bucket of 64, and two rows of logits
    whole = prompts + 2 * 20.0  # the first answer is computed on beside the second one
    assert ends_ms("whole-batches", arrivals) == pytest.approx([whole, whole, whole + 18.0])
    steps = (
        90.0 + 7 * 18.0 + 3 * 20.0
    )  # the second prompt's tokens follow one by one, the last one with logits
    assert ends_ms("shortest-first", arrivals) == pytest.approx([steps, steps, steps + 18.0])
    assert ends_ms("request-level", arrivals) == pytest.approx(
        [prompts, prompts + 2 * 10.0, prompts + 20.0 + 18.0]
    )
    beside = (
        prompts + 18.0 + 20.0
    )  # seven tokens of the third prompt beside the second answer's, and then the last one
    assert ends_ms("collage", arrivals) == pytest.approx([prompts, beside, beside])


def test_few_requests_hide_a_queue() -> None:
    """A batch that takes as long as its longest answer is near its limit long before a few requests show it."""
    lengths = Lengths((8, 64), (1, 32))
    found = on_clock(
        FLAT, requests=80, few=8, running=8, rates=(0.1, 0.9), relative=True, vocabulary=50, lengths=lengths
    )
    rows = found["by_form"]
    assert rows["collage"]["saturated"] > rows["whole-batches"]["saturated"]
    assert (
        rows["shortest-first"]["with_few_requests"] > 1.2 * rows["shortest-first"]["rate_at_twice_unloaded"]
    )
    for row in rows.values():
        assert row["rate_at_twice_unloaded"] <= row["saturated"]
        assert all(each["rate"] < row["saturated"] for each in row["rates"])
    shown = io.StringIO()
    for each in tables({"model": "it", "clock": found, "missing": {}, "failed": {}}):
        Console(file=shown, width=200).print(each)
    assert "with 8 requests" in shown.getvalue() and "ms a token at" in shown.getvalue()
    slow, fast = rows["collage"]["rates"]
    assert slow["latency_ms"] < fast["latency_ms"] and len(rows["shortest-first"]["rates"]) == 1
    rate = rows["collage"]["rate_at_twice_unloaded"]
    trace = poisson_trace(80, rate, 50, lengths)
    assert figures(serve_on_clock("collage", FLAT, trace, 8)).latency_ms == pytest.approx(
        2 * found["unloaded_ms"], rel=0.05
    )


def test_costs_are_messages() -> None:
    assert IterationCosts.from_message(json.loads(json.dumps(FLAT.as_message()))) == FLAT


def test_the_rate_at_a_latency_is_bounded() -> None:
    assert rate_within(lambda rate: rate, 0.5, 2.0) == pytest.approx(0.5, abs=0.01)
    assert rate_within(lambda rate: 0.0, 0.5, 2.0) == pytest.approx(2.0, rel=0.01)
    assert rate_within(lambda rate: 1.0, 0.5, 2.0) == 0.0
