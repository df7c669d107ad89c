"""What the engines make of a model that they run as it is: all of it, or what is left after the placed part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import onnx

from collage.compiler.events import Event, Measured, TriedEngine
from collage.compiler.state import Context
from collage.core.progress import Progress
from collage.kernel.options import BuildOptions
from collage.measure_db.keys import Fact
from collage.measure_db.results import GATE
from collage.measure_db.timing import Timing
from collage.measure_db.whole import Trial, WholeMeasurer
from collage.schedule.region import Region

_TRIAL: Fact[Trial] = Fact("whole_model", Trial.to_json, Trial.from_json)
_UNMEASURED = Timing(0.0, 0.0, 0.0, 0.0, 0)


@dataclass(frozen=True)
class OnEngines:
    """A model to try on the engines: its inputs, a key that identifies both, and what the user reads of it."""

    model: onnx.ModelProto
    inputs: Sequence[Any]
    key: str
    what: str


def mark(context: Context, *about: str) -> str:
    """A key for facts about a model, whatever it is made of, on the engines of a compile."""
    used = ", ".join(f"{name} {context.versions[name]}" for name in sorted(context.engines))
    hardware, threads = context.target.measured_on, context.target.threads
    effort = context.options.effort.mark
    return f"{'; '.join(about)}; {hardware}; {threads} threads; {used}; gate {GATE}{effort}"


def trial_of(context: Context, asked: OnEngines) -> tuple[Trial, Measured]:
    """What each engine makes of the model, and how many measurements that took: none where it is known."""
    key = _TRIAL.at(asked.key)
    known = key.look_up(context.database)
    trial = context.database.remember(key, partial(_measured, context, asked))
    return trial, Measured(0 if known is not None else len(context.engines))


def _measured(context: Context, asked: OnEngines) -> Trial:
    engines = context.engines
    context.progress(Progress("measure", 0, 1, f"{asked.what} on {', '.join(engines)}"))
    with WholeMeasurer(
        *(asked.model, asked.inputs, engines, context.target.threads, context.workers),
        *(context.options.effort, context.options.time_limit_s),
    ) as measurer:
        return measurer.trial()


def engine_region(
    engine: str, nodes: Sequence[onnx.NodeProto], first: int, trial: Trial, options: BuildOptions
) -> Region:
    """The region of ONNX nodes that an engine runs; they are numbered from ``first``."""
    timing = trial.timings.get(engine, _UNMEASURED)
    return Region(
        backend=engine,
        ops=tuple(f"onnx.{node.op_type}" for node in nodes),
        nodes=tuple(range(first, first + len(nodes))),
        sources=tuple(node.name for node in nodes),
        inputs=(),
        outputs=(),
        threads=options.threads,
        cost_us=timing.median_us,
        noise_us=timing.noise_us,
        exclusive=options.exclusive,
        finite_only=engine in trial.finite_only,
    )


def events_of(trial: Trial, nodes: tuple[int, ...]) -> list[Event]:
    """A trial as the log has it, for the nodes that it was about."""
    measured = [TriedEngine(nodes, name, timing) for name, timing in trial.timings.items()]
    return [*measured, *(TriedEngine(nodes, name, None, text) for name, text in trial.refused.items())]
