"""Engines on the whole model: the first module, and what the result is never slower than."""

from __future__ import annotations

import logging
import math
from collections.abc import Generator

from collage.backends.engine import Engine, as_engine
from collage.compiler.bench import Bench
from collage.compiler.best import Best
from collage.compiler.plan import FOLDED, Plan, Verdict, Whole
from collage.errors import ModelError
from collage.frontend.subgraph import Subgraph
from collage.kernel.options import ALL_PLAIN
from collage.measure.worker.whole_protocol import EngineTrial

log = logging.getLogger(__name__)

_FAR = 2.0
"""An engine that takes so many times as long on rows of a table as the best one is left at its usual settings."""
_UNTOUCHED = "no engine takes what Collage makes of it, so it runs as its author wrote it"
_NOT_EXACT = "it loses NaN or reassociates, and the compile was asked to do without"


def engines(bench: Bench, best: Best) -> Generator[Plan, Verdict, None]:
    """Each engine on the model as its author wrote it, at its usual settings.

    If no engine runs it on the numbers that the model compares its inputs with, others are tried, and then the model
    without the shapes that were written into it.
    """
    plans = [Whole(name) for name in bench.task.engines]
    try:
        found = bench.whole.trial(plans, bench.begin)
    except ModelError as error:
        log.info("%s: no engine runs the whole model: %s", bench.task.source.name, error)
        return
    if not found.errors:
        for other in bench.whole.others():
            try:
                again = other.trial(plans)
            except ModelError as error:
                log.info("engines on another form: %s", error)
                again = EngineTrial()
            if again.errors or (again.loaded and not found.loaded):
                if other.form.original is not bench.task.source.original:
                    given = ", on inputs of the given shapes" if bench.task.source.shapes else ""
                    bench.known.note(f"{_UNTOUCHED}{given}")
                other.made += bench.whole.made
                bench.whole, found, other = other, again, bench.whole
            other.close()
            if found.errors:
                break
    bench.known.note(*found.notes)
    yield from _right(bench, plans, found)


def engines_folded(bench: Bench, best: Best) -> Generator[Plan, Verdict, None]:
    """The engines on the simplified model, whose shapes are fixed and whose constants are folded."""
    if bench.add_folded():
        yield from _tried(bench, [Whole(name, FOLDED) for name in bench.task.engines])


def engines_reduced(bench: Bench, best: Best) -> Generator[Plan, Verdict, None]:
    """The engines in the reduced precisions that they offer themselves: these take no search."""
    plans = [
        Whole(name, precision=precision)
        for name, backend in bench.task.engines.items()
        if isinstance(backend, Engine)  # others take parts of models only
        for precision in backend.precisions(bench.task.build)
    ]
    for plan in plans:  # noqa: UP028  (a list cannot be sent verdicts)
        yield plan


def profiles(bench: Bench, best: Best) -> Generator[Plan, Verdict, None]:
    """The other settings of engines, on the form of the model that each is faster on."""
    plans = []
    most = _FAR * min(map(best.score, best.everything()), default=0.0) if bench.task.source.rows else math.inf
    for name, backend in bench.task.engines.items():
        forms = [plan for plan in best.everything() if isinstance(plan, Whole) and plan.engine == name]
        forms = [plan for plan in forms if not (plan.profile or plan.precision or best.score(plan) > most)]
        if not forms:
            continue
        form = min(forms, key=best.score).form
        plans += [Whole(name, form, profile) for profile in as_engine(backend).profiles(bench.task.build) if profile]
    yield from _tried(bench, plans)


def _tried(bench: Bench, plans: list[Whole]) -> Generator[Plan, Verdict, None]:
    """Those of the plans whose outputs are right."""
    if plans:
        try:
            yield from _right(bench, plans, bench.whole.trial(plans))
        except ModelError as error:
            log.info("%s", error)


def _right(bench: Bench, plans: list[Whole], found: EngineTrial) -> Generator[Plan, Verdict, None]:
    for plan in plans:
        if plan.label in found.errors and _is_allowed(bench, plan):
            yield plan
        else:
            bench.known.engines_refused[plan] = found.refused.get(plan.label, _NOT_EXACT)


def _is_allowed(bench: Bench, plan: Whole) -> bool:
    """Whether the engine keeps NaN and reassociates nothing, if the compile asks for that."""
    options, backend = bench.task.options, bench.task.backends[plan.engine]
    if options.exact and (not backend.keeps_nan or bench.whole.on_hostile(plan)[1]):
        return False
    if not (options.exact or not options.reassociate) or not bench.has_graph:
        return True
    everything = Subgraph(bench.model, tuple(range(len(bench.model.graph.nodes))))
    return not backend.reassociates(everything, ALL_PLAIN)
