"""The best plan so far, the runners-up, and what the user is told, with made-up verdicts."""

from __future__ import annotations

from collage.compiler.best import Best
from collage.compiler.clock import Clock
from collage.compiler.plan import FOLDED, MIX, Beyond, Failed, Placed, Plan, Ran, Whole
from collage.core.progress import Progress
from collage.kernel.options import Variant
from collage.search.candidate import Candidate
from collage.search.placement import Placement

ENGINE, OTHER = Whole("engine"), Whole("other")


def mix(number: int, precision: str = "") -> Placed:
    return Placed(Placement((Candidate((number,), "lib", 1.0, variant=Variant(precision=precision)),), 1.0))


def best(*verdicts: tuple[Plan, float, float]) -> tuple[Best, list[Progress]]:
    """The plans have run, with these microseconds and ratios to the best one before."""
    shown: list[Progress] = []
    found = Best(shown.append, Clock())
    for plan, us, ratio in verdicts:
        found.take(Ran(plan, us, ratio))
    return found, shown


def test_ratios_decide_if_the_machine_changes_meanwhile() -> None:
    found, _ = best((ENGINE, 100.0, 1.0), (mix(0), 90.0, 0.5), (mix(1), 30.0, 1.2))
    assert found.everything() == [mix(0), mix(1), ENGINE]
    assert [found.score(plan) for plan in found.everything()] == [0.5, 0.6, 1.0]
    assert found.us(mix(1)) == 60.0
    found.take(Ran(mix(1), 20.0, 0.9))  # once more
    assert found.everything() == [mix(1), mix(0), ENGINE]


def test_failures_leave_and_what_is_beyond_the_tolerance_never_comes() -> None:
    found, _ = best((ENGINE, 100.0, 1.0), (mix(0), 50.0, 0.5))
    found.take(Beyond(mix(1), 0.5, 0.5, "too much"))
    found.take(Failed(mix(0), "crashed"))
    assert found.everything() == [ENGINE]
    found.take(Failed(ENGINE, "crashed"))
    assert found.plan is None and found.first is None


def test_runners_up_and_engines_are_in_the_last_race() -> None:
    near = [(mix(n), 50.0, 0.5 if n == 0 else 1 + n / 100) for n in range(7)]
    found, _ = best((ENGINE, 100.0, 1.0), *near)
    found.take(Ran(OTHER, 110.0, 2.2))
    found.take(Ran(Whole("engine", FOLDED), 99.0, 1.98))
    found.take(Ran(Whole("engine", profile="turbo"), 95.0, 1.9))
    found.take(Ran(Whole("slow"), 300.0, 6.0))
    assert found.finalists() == [
        *(mix(n) for n in range(4)),
        Whole("engine", profile="turbo"),
        Whole("engine", FOLDED),
        OTHER,
    ]


def test_with_a_tolerance_there_are_two_lists() -> None:
    found, _ = best((ENGINE, 100.0, 1.0), (mix(0), 80.0, 0.8), (mix(1), 81.0, 1.01))
    for plan, ratio in (
        (mix(2, "bf16"), 0.5),
        (mix(3, "bf16"), 1.02),
        (Whole("engine", precision="bf16"), 1.5),
    ):
        found.take(Ran(plan, 1.0, ratio))
    assert found.finalists() == [mix(0), mix(1), mix(2, "bf16"), mix(3, "bf16"), ENGINE]
    assert found.engine is not None and found.engine.plan == ENGINE


def test_the_user_is_told_of_what_is_best() -> None:
    found, shown = best()
    found.show(Progress("import", 0, 1))
    found.take(Ran(ENGINE, 12e3, 1.0))
    found.show(Progress("measure", 0, 1))
    found.take(Ran(mix(0), 10e3, 1.1))  # slower
    found.take(Ran(mix(1), 9e3, 0.75))
    found.show(Progress("measure", 0, 1))
    assert [each.best for each in shown] == [
        "",
        "best so far 12 ms (engine, as written)",
        "best so far 9 ms, 1.33x the best engine (engine, as written)",
    ]
    assert [(each.label, each.latency_ms) for each in found.trace] == [
        ("engine, as written", 12.0),
        (MIX, 9.0),
    ]
