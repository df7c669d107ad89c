"""The engines' baselines alone, with made-up costs of the model as its author wrote it."""

from __future__ import annotations

from dataclasses import replace

from collage.compiler.passes.baselines import Baselines
from collage.compiler.passes.calibrate import Calibrate
from collage.compiler.passes.fixpoint import Fixpoint
from collage.compiler.passes.place import Place
from collage.compiler.state import Compilation
from collage.measure_db.results import Slower
from tests.helpers.compiler.null import WHOLE, Made, NullBackend, NullEngine, chain, each_node

LIBRARY = NullBackend("lib", team=True)
ENGINE = NullEngine("engine", ["", "turbo"])
PROFILES = {"usual": "", "turbo": "turbo"}


def planned(ours_us: float, far: float = 3.0, outrun: bool = False, **original_us: float) -> Compilation:
    """The plans where the library is fastest, and the engine takes these microseconds on the original, by profile.

    ``ours_us`` are those on the form from Collage, or a bound where that was ``outrun`` in a race.
    """
    written = {(f"engine as written{PROFILES[key]}", WHOLE): us for key, us in original_us.items()}
    made = Made({**each_node("lib", 20.0), ("engine", WHOLE): ours_us, **written}, LIBRARY, ENGINE)
    measured = made.measured()
    if outrun:
        (form,) = (each for each in measured.outcomes if each.backend == "engine")
        measured = replace(measured, outcomes={**measured.outcomes, form: Slower(ours_us, 10.0, 3)})
    start = Fixpoint(Place(doubts=0), Calibrate())(made.context, measured)
    made.measurer.original = chain()
    return Baselines(far=far)(made.context, start)


def labels(compilation: Compilation) -> list[str]:
    return [plan.label for plan in compilation.plans]


def test_the_best_profile_beats_collages_form_and_runs_beside_the_usual_one() -> None:
    found = planned(80.0, usual=100.0, turbo=50.0)
    assert labels(found) == ["collage", "engine, as written, turbo", "engine, as written"]
    assert [plan.profile for plan in found.plans] == ["", "turbo", ""]
    assert all(plan.original and plan.exclusive for plan in found.plans[1:])


def test_an_engine_runs_in_the_last_comparison_however_much_slower_it_is() -> None:
    """Where its form from Collage is faster than the original, that one does, unless it lost a race."""
    assert labels(planned(200.0, far=1.1, usual=300.0)) == ["collage", "engine"]
    assert labels(planned(200.0, far=1.1, outrun=True, usual=300.0)) == ["collage", "engine, as written"]
