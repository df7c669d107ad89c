"""The study of one model: right answers, the engine alone, Orca's trace, and times between tokens."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from scripts.lib.serving.bounds import Machine, Needs, batch_bound_s, token_bound_s, trace_bound_s
from scripts.lib.serving.clock_study import on_clock
from scripts.lib.serving.contender import FLOAT32
from scripts.lib.serving.field import DEFAULTS, OURS, REQUEST_LEVEL, STATIC, Field
from scripts.lib.serving.iteration_costs import IterationCosts
from scripts.lib.serving.prepare import Model
from scripts.lib.serving.record import Figures, Served, agreement, figures, pooled, rate_at
from scripts.lib.serving.trace import LONG_PROMPTS, ORCA, Lengths, as_message, fixed_batch, poisson_trace
from scripts.lib.studies.each import say

PARTS = ("right", "alone", "trace", "clock", "between")
_LIMIT_S = 1800.0
_CELL_S, _MOST_TIMES = 3.0, 6
"""A run of the microbenchmark that is shorter than this is repeated more often, up to so many times."""
_OVERLOADED = 6.0
"""A contender whose latency is this many times the unloaded one is not run at higher rates."""


@dataclass(frozen=True)
class Course:
    """What is run: ``requests`` of a saturated run, ``seconds`` of a run at a rate, and ``rounds`` of everything.

    ``rates`` are requests a second, or shares of Collage's saturated rate where ``relative``.
    """

    rounds: int = 3
    requests: int = 96
    seconds: float = 12.0
    rates: tuple[float, ...] = (0.15, 0.3, 0.5, 0.7, 0.9, 1.1)
    relative: bool = True
    running: int = 32
    precision: str = FLOAT32
    parts: tuple[str, ...] = PARTS
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    inputs: tuple[int, ...] = (32, 128)
    outputs: int = 32
    lengths: Lengths = ORCA
    long_prompts: Lengths = LONG_PROMPTS
    clock_requests: int = 500

    @property
    def fewest(self) -> int:
        """The fewest requests of a run."""
        return max(4, self.requests // 4)


QUICK = Course(
    rounds=1,
    requests=12,
    seconds=2.0,
    rates=(0.5,),
    running=8,
    batches=(1, 4),
    inputs=(8,),
    outputs=8,
    lengths=Lengths((8, 64), (2, 16)),
    long_prompts=Lengths((64, 64), (8, 16)),
    clock_requests=20,
)
"""What is run of tiny models, to see that everything works."""


def study(model: Model, field: Field, course: Course, machine: Machine) -> dict[str, Any]:
    """All parts of the study that are asked for, as JSON."""
    needs = Needs.of(model.shape, course.precision)
    found: dict[str, Any] = {
        "model": model.name,
        "contenders": {name: dict(each.facts) for name, each in field.running.items()},
    }
    if "right" in course.parts and OURS in field.running:
        found["right"] = right(model, field, course)
    if "alone" in course.parts and OURS in field.running:
        found["alone"] = alone(model, field, course, machine)
        found["scheduler_us"] = scheduler(field, course)
    if "trace" in course.parts:
        found["trace"] = trace(model, field, course, machine)
    if "clock" in course.parts and OURS in field.running:
        found["clock"] = clock(model, field, course)
    if "between" in course.parts:
        found["between"] = between(model, field, course)
    found["bounds"] = {
        "tokens_per_s_alone": 1 / token_bound_s(course.lengths.inputs[1] // 2, needs, machine),
        "weights_ms": 1e3 * token_bound_s(0, needs, machine),
    }
    found["missing"], found["failed"] = field.missing, field.failed
    return found


def right(model: Model, field: Field, course: Course) -> Mapping[str, Any]:
    """The engine's answers to some requests of Orca's trace against those of ONNX Runtime on the original decoder."""
    arrivals = poisson_trace(course.fewest, math.inf, model.shape.vocabulary, course.lengths, seed=11)
    message = {"do": "right", "arrivals": as_message(arrivals), "model": str(model.onnx.absolute())}
    found = field.running[OURS].ask(message, _LIMIT_S)
    say(f"{model.name}: {found['same_tokens']:.2%} of {found['tokens']} tokens are the original's")
    return found


def alone(model: Model, field: Field, course: Course, machine: Machine) -> list[dict[str, Any]]:
    """Orca's microbenchmark: the engine's speed as a share of a static batch's, for each length and batch.

    Short runs have several times as many rounds, since the machine's moments change a share of them more.
    """
    rows = []
    needs = Needs.of(model.shape, course.precision)
    for inputs in course.inputs:
        for batch in course.batches:
            arrivals = fixed_batch(batch, inputs, course.outputs, model.shape.vocabulary)
            message = {"do": "alone", "arrivals": as_message(arrivals)}
            warm = field.running[OURS].ask({**message, "reverse": False}, _LIMIT_S)
            times = min(_MOST_TIMES, max(1, round(_CELL_S / warm["static_s"])))
            runs = [
                field.running[OURS].ask({**message, "reverse": bool(round_ % 2)}, _LIMIT_S)
                for round_ in range(course.rounds * times)
            ]
            shares = [run["static_s"] / run["engine_s"] for run in runs]
            static_s, engine_s = (
                statistics.median(run[key] for run in runs) for key in ("static_s", "engine_s")
            )
            say(f"{model.name}: {batch} x {inputs}: {engine_s:.3f} s, static {static_s:.3f} s")
            bound = batch_bound_s(batch, inputs, course.outputs, needs, machine)
            rows.append(
                {
                    "inputs": inputs,
                    "batch": batch,
                    "engine_s": engine_s,
                    "static_s": static_s,
                    "rounds": len(runs),
                    "share_of_static": statistics.median(shares),
                    "share_noise": _noise(shares),
                    "chunked_share": statistics.median(run["static_s"] / run["chunked_s"] for run in runs),
                    "drawn_share": statistics.median(run["static_s"] / run["drawn_s"] for run in runs),
                    "tokens_per_s": batch * course.outputs / engine_s,
                    "share_of_bound": bound / engine_s,
                    "scheduler_us": statistics.median(run["scheduler_us"] for run in runs),
                    "same_tokens": min(run["same_tokens"] for run in runs),
                }
            )
    return rows


def _noise(shares: Sequence[float]) -> float:
    """The standard error of the median, from the median distance to it, as for normally distributed shares."""
    middle = statistics.median(shares)
    return 1.4826 * 1.2533 * statistics.median(abs(each - middle) for each in shares) / math.sqrt(len(shares))


def scheduler(field: Field, course: Course) -> dict[str, float]:
    """Microseconds that the scheduler takes for an iteration, without a model; the median of the rounds."""
    message = {"do": "scheduler", "running": course.running}
    runs = [field.running[OURS].ask(message, _LIMIT_S) for _ in range(course.rounds)]
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def trace(model: Model, field: Field, course: Course, machine: Machine) -> dict[str, Any]:
    """Orca's trace: unloaded, saturated, and at rates in between, by turns."""
    unloaded = _unloaded(model, field, course)
    saturated = _runs(model, field, course, [math.inf], course.lengths)
    capacity = {
        name: pooled(runs[math.inf]).requests_per_s for name, runs in saturated.items() if math.inf in runs
    }
    top = capacity.get(OURS) or max(capacity.values(), default=1.0)
    rates = [each * top if course.relative else each for each in course.rates]
    base = min((each.latency_ms for each in unloaded.values()), default=math.inf)
    runs = _runs(model, field, course, rates, course.lengths, most_ms=_OVERLOADED * base)
    ours_ms = unloaded[OURS].latency_ms if OURS in unloaded else base
    needs = Needs.of(model.shape, course.precision)
    bound_s = trace_bound_s(
        poisson_trace(course.requests, math.inf, model.shape.vocabulary, course.lengths),
        course.running,
        needs,
        machine,
    )
    rows = {}
    for name in saturated:
        if math.inf not in saturated[name] or name not in unloaded:
            continue
        points = {rate: pooled(each) for rate, each in runs.get(name, {}).items()}
        full = pooled(saturated[name][math.inf])
        rows[name] = {
            "unloaded": asdict(unloaded[name]),
            "saturated": asdict(full),
            "saturated_spread": _spread(saturated[name][math.inf]),
            "share_of_bound": bound_s * len(saturated[name][math.inf]) / full.seconds,
            "rates": [{"rate": rate, **asdict(each)} for rate, each in sorted(points.items())],
            "rate_at_twice_unloaded": rate_at(
                2 * ours_ms, [(rate, each.latency_ms) for rate, each in points.items()]
            ),
            "same_tokens": _same(saturated, name),
        }
    return {"unloaded_ms": ours_ms, "by_contender": rows, "ratios": _ratios(rows)}


def clock(model: Model, field: Field, course: Course) -> dict[str, Any]:
    """Orca's trace with many requests on a clock, from the costs of iterations that are measured now."""
    costs = IterationCosts.from_message(field.running[OURS].ask({"do": "costs"}, _LIMIT_S))
    return on_clock(
        costs,
        requests=course.clock_requests,
        few=course.fewest,
        running=course.running,
        rates=course.rates,
        relative=course.relative,
        vocabulary=model.shape.vocabulary,
        lengths=course.lengths,
    )


def between(model: Model, field: Field, course: Course) -> dict[str, Any]:
    """The time between tokens while long prompts arrive, at 70 % of what each contender can serve of these."""
    course = replace(course, requests=max(course.fewest, course.requests // 2))  # they are long
    names = [name for name in field.running if name not in STATIC]
    saturated = _runs(model, field, course, [math.inf], course.long_prompts, only=names)
    own = {
        name: 0.7 * pooled(runs[math.inf]).requests_per_s
        for name, runs in saturated.items()
        if math.inf in runs
    }
    found: dict[str, list[list[Served]]] = {}
    for round_ in range(course.rounds):
        for name in _turned(list(own), round_):
            served = _run(model, field, course, name, own[name], course.long_prompts, round_)
            if served is not None:
                found.setdefault(name, []).append(served)
    return {
        name: {
            "rate": own[name],
            **asdict(each),
            "p99_over_median": _p99_over_median(each),
            "rounds_p99_over_median": [_p99_over_median(figures(run)) for run in found[name]],
        }
        for name, each in ((name, pooled(runs)) for name, runs in found.items())
    }


def _unloaded(model: Model, field: Field, course: Course) -> dict[str, Figures]:
    """The figures of requests that are served one at a time, each by all contenders in turn."""
    arrivals = poisson_trace(course.fewest, math.inf, model.shape.vocabulary, course.lengths, seed=7)
    found: dict[str, list[list[Served]]] = {}
    for turn, each in enumerate((arrivals[0], *arrivals)):
        for name in _turned(list(field.running), turn):
            served = field.serve(name, [each], _LIMIT_S)
            if served is not None and turn:  # the first request of all is slower
                found.setdefault(name, []).append(served)
    whole = {name: pooled(runs) for name, runs in found.items() if len(runs) == len(arrivals)}
    for name, figures_ in whole.items():
        say(f"{model.name}: {name} alone: {_words(figures_)}")
    return whole


Runs = dict[str, dict[float, list[list[Served]]]]


def _runs(
    model: Model,
    field: Field,
    course: Course,
    rates: Sequence[float],
    lengths: Lengths,
    *,
    most_ms: float = math.inf,
    only: Sequence[str] | None = None,
) -> Runs:
    """The rounds of all contenders at the rates, by turns; each round begins with another contender."""
    found: Runs = {}
    over: set[str] = set()
    chosen = list(field.running) if only is None else list(only)
    for round_ in range(course.rounds):
        for turn, rate in enumerate(sorted(rates)):
            for name in _turned(chosen, round_ + turn):
                if name in over and rate not in found.get(name, {}):
                    continue
                served = _run(model, field, course, name, rate, lengths, round_)
                if served is None:
                    continue
                found.setdefault(name, {}).setdefault(rate, []).append(served)
                if figures(served).latency_ms > most_ms:
                    over.add(name)
    return found


def _run(
    model: Model, field: Field, course: Course, name: str, rate: float, lengths: Lengths, seed: int
) -> list[Served] | None:
    """A run of one contender at a rate, or None where it fails."""
    count = course.requests if math.isinf(rate) else max(course.fewest, round(rate * course.seconds))
    served = field.serve(
        name, poisson_trace(count, rate, model.shape.vocabulary, lengths, seed=seed), _LIMIT_S
    )
    if served is not None:
        say(f"{model.name}: {name} at {rate:.2f}/s: {_words(figures(served))}")
    return served


def _turned(names: Sequence[str], turn: int) -> list[str]:
    """The names in an order that begins with another one each turn: a machine's speed may change meanwhile."""
    start = turn % len(names) if names else 0
    return [*names[start:], *names[:start]]


def _words(each: Figures) -> str:
    return (
        f"{each.requests_per_s:.2f} requests/s, {each.tokens_per_s:.0f} tokens/s, {each.latency_ms:.1f} ms a token, "
        f"between tokens {each.between_ms:.1f} ms, 99 %: {each.between_p99_ms:.1f} ms"
    )


def _p99_over_median(each: Figures) -> float:
    return each.between_p99_ms / each.between_ms


def _spread(runs: Sequence[Sequence[Served]]) -> float:
    """The largest rate of the rounds over the least one."""
    rates = [figures(run).requests_per_s for run in runs]
    return max(rates) / min(rates)


def _same(runs: Runs, name: str) -> float | None:
    """The share of tokens that are Collage's, of greedy answers to the same prompts."""
    if OURS not in runs or math.inf not in runs[OURS]:
        return None
    pairs = zip(runs[name][math.inf], runs[OURS][math.inf], strict=False)
    return statistics.mean(agreement(mine, its) for mine, its in pairs)


def _ratios(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Collage over each form of request-level scheduling, and over the best peer of equal precision."""
    if OURS not in rows:
        return {}
    ours = rows[OURS]
    forms = (REQUEST_LEVEL, *STATIC)
    peers = [name for name in rows if name not in (OURS, *forms) and not name.endswith(DEFAULTS)]
    found: dict[str, Any] = {}
    rivals = {**{name.replace("-", "_"): [name] for name in forms}, "best_peer": peers}
    for label, names in rivals.items():
        there = [rows[name] for name in names if name in rows]
        if not there:
            continue
        best = max(each["saturated"]["requests_per_s"] for each in there)
        rates = [each["rate_at_twice_unloaded"] for each in there]
        known = [each for each in rates if each is not None]
        mine = ours["rate_at_twice_unloaded"]
        found[label] = {
            "saturated": ours["saturated"]["requests_per_s"] / best,
            "at_twice_unloaded": mine / max(known) if mine is not None and known else None,
        }
    return found
