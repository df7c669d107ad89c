"""The race of a region as a job: who is checked, and what a kernel costs that fails or ends the worker."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from collage.check.gate import Checked
from collage.check.samples import fatal_samples
from collage.graph.storage import BF16, BLOCKED
from collage.kernel.options import ALL_PLAIN, BuildOptions, Variant
from collage.measure.jobs import Racer, RegionJob
from collage.measure.timing.cache_state import MOST_BYTES
from collage.measure.timing.race import CLOSE, LaneTime
from collage.measure.worker.protocol import (
    CandidateRequest,
    CheckKernel,
    KernelFailed,
    RaceKernels,
    RaceRun,
    Tried,
    TryKernel,
)
from collage.measure_db.results import Measurement, Outcome, Rejection, RejectionKind, Slower

WRONG = Rejection(RejectionKind.INACCURATE, "wrong")
CRASHED = Rejection(RejectionKind.CRASHED, "SIGSEGV")
IN_BLOCKS, IN_BF16 = Variant((BLOCKED,), (BLOCKED,)), Variant(precision=BF16)


@dataclass
class FakeWorker:
    """Kernels by backend take these times; some are wrong, or end the process, at some stage."""

    times: dict[str, float]
    wrong: dict[str, type] = field(default_factory=dict)
    deadly: dict[str, type] = field(default_factory=dict)
    held_bytes: int = 1
    held: dict[int, str] = field(default_factory=dict)
    races: list[list[str]] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    notes: set[Path] = field(default_factory=set)
    tuned: list[str] = field(default_factory=list)

    def ask(self, message: Any, what: str, threads: int) -> Any:
        if isinstance(message, TryKernel):
            name = message.request.backend
            self.held = {number: each for number, each in self.held.items() if number in message.keep}
            if self.deadly.get(name) is TryKernel:
                return self._die(message.number)
            if self.wrong.get(name) is TryKernel:
                return KernelFailed(message.number, WRONG)
            self.held[message.number] = name
            if message.options.tune_trials and not message.options.tuning:
                self.tuned.append(name)
            return Tried(1e-7, f"of {name}" if message.options.tune_trials else "", self.held_bytes)
        if isinstance(message, RaceKernels):
            names = {number: self.held[number] for number in message.numbers}
            self.races.append([*names.values()])
            for number, name in names.items():
                if self.deadly.get(name) is RaceKernels:
                    return self._die(number)
            best = min(self.times[name] for name in names.values())
            return RaceRun(
                {
                    number: LaneTime(us, 0.1, us, us, 9, us / best)
                    for number, name in names.items()
                    for us in [self.times[name]]
                }
            )
        assert isinstance(message, CheckKernel)
        name = self.held[message.number]
        self.checked.append(name)
        if self.deadly.get(name) is CheckKernel:
            return self._die(message.number)
        return KernelFailed(message.number, WRONG) if self.wrong.get(name) is CheckKernel else Checked(1e-6)

    def _die(self, number: int, rejection: Rejection = CRASHED) -> KernelFailed:
        self.held = {}
        return KernelFailed(number, rejection, ended=True)

    def fatal_samples(self) -> set[Path]:
        return set(self.notes)


def racer(name: str, variant: Variant = ALL_PLAIN) -> Racer:
    return Racer(CandidateRequest((0, 1), name, variant), BuildOptions(variant=variant), 30.0)


def run(worker: FakeWorker, *racers: Racer, **about: Any) -> dict[str, Outcome]:
    parts = RegionJob(racers, 1, **about).run(worker)
    return {request.backend: outcome for request, outcome in parts}


def test_the_best_are_checked_and_the_others_are_slower() -> None:
    times = {name: 10.0 + at for at, name in enumerate("abcdef")}
    worker = FakeWorker({**times, "blocks": 14.0, "slow blocks": 14.5, "narrow": 9.9})
    more = (racer("blocks", IN_BLOCKS), racer("slow blocks", IN_BLOCKS), racer("narrow", IN_BF16))
    found = run(worker, *map(racer, "fedcba"), *more)
    assert {name for name, each in found.items() if isinstance(each, Measurement)} == {
        *"abc",
        "blocks",
        "narrow",
    }
    assert found["a"] == Measurement(10.0, 0.1, 10.0, 9, 1e-6)
    assert isinstance(found["f"], Slower) and found["f"].least_us == 15.0
    assert sorted(worker.checked) == sorted([*"abc", "blocks", "narrow"])


def test_the_next_takes_the_place_of_one_that_is_wrong() -> None:
    worker = FakeWorker(
        {name: 10.0 + at for at, name in enumerate("abcdef")},
        {"a": CheckKernel, "c": CheckKernel, "e": TryKernel},
    )
    found = run(worker, *map(racer, "abcdef"))
    assert found["a"] == found["c"] == found["e"] == WRONG
    assert [name for name, each in found.items() if isinstance(each, Measurement)] == ["b", "d", "f"]


@pytest.mark.parametrize("stage", [TryKernel, RaceKernels, CheckKernel])
def test_a_kernel_that_ends_the_worker_costs_only_itself(stage: type) -> None:
    """One may also end it in the race alone, and not by itself."""
    worker = FakeWorker({"a": 10.0, "b": 11.0, "c": 12.0}, deadly={"b": stage})
    found = run(worker, *map(racer, "abc"))
    assert found.pop("b") == CRASHED
    assert len(found) == 2 and all(isinstance(each, Measurement) for each in found.values())


def test_what_is_held_again_is_not_tuned_again() -> None:
    worker = FakeWorker({"a": 10.0, "b": 11.0, "c": 10.0 * CLOSE + 1}, deadly={"b": RaceKernels})
    tuned = [replace(racer(name), options=BuildOptions(tune_trials=3)) for name in "abc"]
    found = run(worker, *tuned)
    assert isinstance(found["a"], Measurement) and isinstance(found["c"], Slower)
    assert (found["a"].tuning, found["c"].tuning) == ("of a", "of c")  # the next race of both needs no trials
    assert worker.tuned == [*"abc"] and worker.races == [[*"abc"], [*"ac"]]


def test_without_the_incumbent_the_others_race_among_themselves() -> None:
    worker = FakeWorker({"a": 10.0, "b": 11.0, "old": 9.0}, deadly={"old": RaceKernels})
    found = run(worker, racer("a"), racer("b"), incumbent=(racer("old"),), known_us=9.0)
    assert found.pop("old") == CRASHED
    assert all(isinstance(each, Measurement) for each in found.values())
    assert worker.races == [["a", "b", "old"], ["a", "b"]]


def test_more_than_memory_holds_race_in_heats() -> None:
    times = {name: 10.0 + at for at, name in enumerate("abcdefghi")}
    worker = FakeWorker(times, held_bytes=MOST_BYTES // 4)
    found = run(worker, *map(racer, "ihgfedcba"))
    assert len(worker.races) > 1 and all(len(each) <= 5 for each in worker.races)
    assert [name for name, each in found.items() if isinstance(each, Measurement)] == ["a", "b", "c"]
    assert found.keys() == times.keys()


def test_what_could_gain_nothing_is_not_checked() -> None:
    worker = FakeWorker({"a": 10.0, "b": 10.0 * CLOSE})
    found = run(worker, racer("a"), racer("b"), most_us=9.0)
    assert all(isinstance(each, Slower) for each in found.values()) and not worker.checked


def test_to_the_end_all_are_checked() -> None:
    worker = FakeWorker({name: 10.0 ** (1 + at) for at, name in enumerate("abcde")})
    found = run(worker, *map(racer, "abcde"), to_the_end=True)
    assert all(isinstance(each, Measurement) for each in found.values())


@pytest.mark.parametrize("kind", [*RejectionKind])
def test_only_a_reference_that_ended_by_itself_is_to_blame(kind: RejectionKind, tmp_path: Path) -> None:
    """One that was killed since the time was over has survived its inputs so far."""

    class Reference(FakeWorker):
        """Ends the first time it is asked for a check, and leaves a note of what it tried."""

        def ask(self, message: Any, what: str, threads: int) -> Any:
            if isinstance(message, CheckKernel) and not (tmp_path / "new.trying").exists() and not self.checked:
                (tmp_path / "new.trying").touch()
                self.checked.append("tried")
                return self._die(message.number, Rejection(kind, "x"))
            return super().ask(message, what, threads)

        def fatal_samples(self) -> set[Path]:
            return fatal_samples(tmp_path)

    (tmp_path / "old.trying").touch()
    (found,) = run(Reference({"a": 10.0}), racer("a")).values()
    again = kind in (RejectionKind.CRASHED, RejectionKind.MEMORY)
    assert isinstance(found, Measurement) if again else found == Rejection(kind, "x")
    assert {each.stem for each in fatal_samples(tmp_path)} == {"old"} | ({"new"} if again else set())
