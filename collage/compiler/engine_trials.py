"""Trials of the engines on a model that one of them shall run as it is: the whole model, or its dynamic suffix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import onnx

from collage.compiler.events import Event, Measured, TriedEngine
from collage.compiler.options import CompileOptions
from collage.compiler.state import Context
from collage.core.progress import Progress
from collage.kernel.frames import Framed
from collage.kernel.options import BuildOptions
from collage.measure.whole import WholeMeasurer, WholeSettings
from collage.measure.whole_trial import EngineTrial
from collage.measure_db.keys import Fact
from collage.measure_db.results import GATE, Timing
from collage.schedule.region import Region

_TRIAL: Fact[EngineTrial] = Fact("whole_model", EngineTrial.to_json, EngineTrial.from_json, EngineTrial.busy)
_EDITION = "trial 3"
"""The edition of how engines are compared with references. The second one changes weights where inputs are integers,
and the third one leaves random numbers to ONNX Runtime."""
_UNMEASURED = Timing(0.0, 0.0, 0.0, 0.0, 0)


@dataclass(frozen=True)
class OnEngines:
    """A model to try on the engines.

    ``inputs`` are its inputs in order, ``key`` identifies the model and the inputs in the database, and ``what`` names
    the model in messages to the user. ``data`` is its artifact where that is known.
    """

    model: onnx.ModelProto
    inputs: Sequence[Any]
    key: str
    what: str
    data: bytes | Framed | None = None


def mark(context: Context, *about: str) -> str:
    """A database key for a fact about a model on the engines of this compile; ``about`` identifies the model."""
    used = ", ".join(f"{name} {context.keyed_versions[name]}" for name in sorted(context.engines))
    hardware, threads = context.target.measured_on, context.target.threads
    effort, limit_s = context.options.effort.mark, context.options.time_limit_s
    limit = "" if limit_s == CompileOptions.time_limit_s else f" within {limit_s:g} s"
    return (
        f"{'; '.join(about)}; {hardware}; {threads} threads; {used}; gate {GATE}, {_EDITION}{effort}{limit}"
    )


def trial_of(context: Context, asked: OnEngines) -> tuple[EngineTrial, Measured]:
    """The trial of all engines on the model, from the database or made now, and how many measurements were made."""
    key = _TRIAL.at(asked.key)
    known = key.look_up(context.database)
    trial = context.database.remember(key, partial(_measured, context, asked))
    return trial, Measured(0 if known is not None else len(context.engines))


def _measured(context: Context, asked: OnEngines) -> EngineTrial:
    engines = context.engines
    context.progress(Progress("measure", 0, 1, f"{asked.what} on {', '.join(engines)}"))
    options = context.options
    settings = WholeSettings(context.target.threads, options.effort, options.time_limit_s)
    whole = WholeMeasurer(asked.model, asked.inputs, engines, settings, context.workers, asked.data)
    with whole as measurer:
        return measurer.trial()


def engine_region(
    engine: str, nodes: Sequence[onnx.NodeProto], first: int, trial: EngineTrial, options: BuildOptions
) -> Region:
    """The region of ONNX nodes that an engine runs. The nodes are numbered from ``first`` on."""
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


def events_of(trial: EngineTrial, nodes: tuple[int, ...]) -> list[Event]:
    """The trial as events for the log; ``nodes`` are those that the engines ran."""
    measured = [TriedEngine(nodes, name, timing) for name, timing in trial.timings.items()]
    return [*measured, *(TriedEngine(nodes, name, None, text) for name, text in trial.refused.items())]
