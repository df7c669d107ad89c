"""The pipeline: a compile is a list of passes over its state.

``FULL`` recalls what a finished compile of the same model has found. Else it measures the most promising offers, places
the model with these, and then with whatever may be part of a faster mix. ``QUICK`` measures few candidates, for a
placement that is right and perhaps not the fastest. Both may be stopped at any moment (``ANYTIME``, ``ANYTIME_QUICK``).
A model that has no placement goes to the engines whole (see ``compile``).
"""

from __future__ import annotations

import logging
from dataclasses import replace

from collage.compiler.events import Event
from collage.compiler.passes.anytime import Anytime
from collage.compiler.passes.baselines import Baselines
from collage.compiler.passes.calibrate import Calibrate
from collage.compiler.passes.concurrency import Concurrency
from collage.compiler.passes.early_engines import EarlyEngines
from collage.compiler.passes.early_mixes import EarlyMixes
from collage.compiler.passes.early_placement import EarlyPlacement
from collage.compiler.passes.fixpoint import Fixpoint
from collage.compiler.passes.glance import Glance
from collage.compiler.passes.gpu_streams import GpuStreams
from collage.compiler.passes.import_model import Import
from collage.compiler.passes.match import Match
from collage.compiler.passes.measure import Measure
from collage.compiler.passes.measure_few import MeasureFew
from collage.compiler.passes.place import Place
from collage.compiler.passes.place_once import PlaceOnce
from collage.compiler.passes.ranges import Ranges
from collage.compiler.passes.recall import Recall
from collage.compiler.passes.refine import Refine
from collage.compiler.passes.refuse_opaque import RefuseOpaque
from collage.compiler.passes.refuse_uncovered import RefuseUncovered
from collage.compiler.passes.repeat import Either, IfPlaced, Repeat
from collage.compiler.passes.select import Select
from collage.compiler.passes.select_only import SelectOnly
from collage.compiler.passes.settle import Settle
from collage.compiler.passes.verify import Verify
from collage.compiler.passes.within import Within
from collage.compiler.state import Compilation, Context, Lab, Pass, Source, run
from collage.measure.timing.effort import QUICK as QUICK_EFFORT

log = logging.getLogger(__name__)

_ONCE = Fixpoint(Place(suggests=False, doubts=0), Calibrate(), rounds_within=1)

_EARLY: tuple[Pass, ...] = (
    # Within a tolerance the mix in the model's own dtypes is a beginning. What is faster comes right after it.
    Fixpoint(Place(suggests=False), Calibrate(), rounds_within=1),
    Glance(),
    EarlyPlacement(
        Measure(few=True, slowest=0.8),
        # Where the error is near the tolerance, launches side by side, whose kernels are others, are beyond it.
        Within(_ONCE, aim=0.7, rounds=4, gap=0.02),
        Concurrency(rounds=2, most_first=1),
    ),
    Concurrency(rounds=1, most_first=1),
    GpuStreams(),
    Glance(of_streams=True),
)

_STREAMS: tuple[Pass, ...] = (Concurrency(), GpuStreams(), Glance(of_streams=True))

_SEARCH: tuple[Pass, ...] = (
    EarlyEngines(),
    Measure(few=True),
    IfPlaced((Either(Repeat(_EARLY), Repeat((Measure(few=True, between=True), *_EARLY))),)),
    Measure(),
    # What runs side by side gains more than the next rounds of calibration do, if the compile is stopped here.
    IfPlaced((Repeat((Fixpoint(Place(), Calibrate(), rounds=1), *_STREAMS)),)),
    Repeat(
        (
            Within(Fixpoint(Place(), Calibrate())),
            Baselines(),
            Refine(),
            Concurrency(),
            GpuStreams(),
            EarlyMixes(),
            Select(),
        )
    ),
)

_MATCH: tuple[Pass, ...] = (Match(), RefuseOpaque(), RefuseUncovered())

FULL: tuple[Pass, ...] = (Import(), Verify(), Ranges(), *_MATCH, Recall(_SEARCH))


def _quick(measure: Pass, *, guarded: bool = True) -> Pass:
    """Place once, and within the tolerance: samples are few, and sensitivities take too long to measure."""
    place = Within(PlaceOnce(guarded=guarded), aim=0.7, rounds=4, sensitivities=False)
    return Repeat((measure, place, GpuStreams(), SelectOnly()))


# Where the model's usual values are so large that a guard would trip in every call.
_QUICK_AT_LAST = Either(_quick(MeasureFew(between=True), guarded=False), _quick(MeasureFew(every=True)))

QUICK: tuple[Pass, ...] = (
    *(Import(), Verify(), EarlyEngines()),
    *_MATCH,
    Either(_quick(MeasureFew()), Either(_quick(MeasureFew(between=True)), _QUICK_AT_LAST)),
)

ANYTIME: tuple[Pass, ...] = (Anytime(FULL, Settle(), least=QUICK),)

ANYTIME_QUICK: tuple[Pass, ...] = (Anytime(QUICK, Settle(select=SelectOnly())),)


def compiled(context: Context, source: Source) -> Compilation:
    """Run the passes that the context's effort asks for on the source.

    Events of the worker come first in the log, whichever attempt they belong to. Raises ModelError, NoPlacementError,
    DatabaseError, MeasurementError, and BudgetOverError when the compile has to end.
    """
    return _run(QUICK if context.options.effort is QUICK_EFFORT else FULL, context, Compilation(source))


def compiled_anytime(context: Context, start: Compilation) -> Compilation:
    """The same from a compilation that may have a first module. When the passes are stopped, the best is handed over.

    Raises what ``compiled`` raises but BudgetOverError, and KeyboardInterrupt where there is no module yet.
    """
    quick = context.options.effort is QUICK_EFFORT
    return _run(ANYTIME_QUICK if quick else ANYTIME, context, start)


def _run(passes: tuple[Pass, ...], context: Context, start: Compilation) -> Compilation:
    try:
        compilation = run(passes, context, start)
    finally:
        journal = _closed(context.lab)
    return replace(compilation, log=(*journal, *compilation.log))


def _closed(lab: Lab) -> tuple[Event, ...]:
    """Close the lab. Ctrl-C while its worker ends does not throw away what the passes have made."""
    try:
        return lab.close()
    except KeyboardInterrupt:
        log.warning("interrupted while the worker ended; all measurements are kept")
        return lab.close()
