"""What is blamed for a plan that fails, without a worker that runs it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from collage.compiler.executable import Executable
from collage.compiler.known import Known
from collage.compiler.placing import place
from collage.compiler.plan import Failed, Placed, RaceFailedError
from collage.compiler.plan_runs import PlanRuns
from collage.errors import MeasurementError
from collage.kernel.options import BuildOptions
from collage.measure.plans import PlanFailedError
from collage.measure.worker.plan_protocol import Plan, PlanKernel
from collage.measure_db.database import Database
from collage.measure_db.results import Rejection, RejectionKind
from tests.helpers.compiler.null import TARGET, Made, NullBackend, each_node

CRASHED = Rejection(RejectionKind.CRASHED, "SIGSEGV")


class Failing:
    """A measurer that only takes rejections, and plans in its worker that fail when they are opened."""

    def __init__(self, made: Made) -> None:
        self.model = made.bench.model
        self.kernels = self
        self.rejected: list[tuple[PlanKernel, Rejection]] = []
        self.failure: tuple[int | None, Rejection] | None = None
        self.error: Exception | None = None

    def reject(self, kernel: PlanKernel, rejection: Rejection) -> None:
        self.rejected.append((kernel, rejection))

    def known(self, requests: object) -> dict[object, object]:
        return {}

    def open(self, plan: Plan) -> None:
        if self.failure is not None:
            raise PlanFailedError(plan, *self.failure)

    def make_here(self, kernel: PlanKernel) -> None:
        assert self.error is not None
        raise self.error


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database(tmp_path / "db.sqlite") as database:
        yield database


@pytest.fixture
def made() -> Made:
    return Made(each_node("lib", 1.0), NullBackend("lib", team=True))


@pytest.fixture
def executable(made: Made) -> Executable:
    return made.bench.assembler.assemble(Placed(place(made.measured().bench)), {})


def runs_of(made: Made, database: Database) -> tuple[PlanRuns, Failing]:
    """What runs plans, in a compile of its own."""
    failing = Failing(made)
    runs = PlanRuns(cast(Any, failing), database, Known(), TARGET, 0, lambda _: None)
    runs.__dict__["_plans"] = failing
    return runs, failing


def fail(runs: PlanRuns, failing: Failing, executable: Executable, failure: Any) -> Failed:
    """What is told of a plan that fails in the worker."""
    failing.failure = failure
    with pytest.raises(RaceFailedError) as raised:
        runs.open(executable)
    failing.failure = None
    assert raised.value.failed.plan == executable.plan
    return raised.value.failed


def test_a_kernel_is_rejected_with_the_place(made: Made, executable: Executable, database: Database) -> None:
    runs, failing = runs_of(made, database)
    failed = fail(runs, failing, executable, (1, CRASHED))
    assert failed.kernel == executable.kernels[1]
    ((kernel, rejection),) = failing.rejected
    assert kernel == executable.kernels[1]
    assert rejection.message == "in the network, after lib relu: SIGSEGV"
    assert runs.known.told == ("mix: lib tanh: crashed: in the network, after lib relu: SIGSEGV; not used",)
    again = fail(runs, failing, executable, (1, CRASHED))  # its rejection has not helped
    assert again.kernel is None and again.reason.startswith("fails as a whole: ")


def test_what_nobody_is_to_blame_for_is_dropped_and_remembered(
    made: Made, executable: Executable, database: Database
) -> None:
    runs, failing = runs_of(made, database)
    runs.open(executable)
    failed = fail(runs, failing, executable, (None, CRASHED))
    assert failed.kernel is None and failed.reason == "fails as a whole: crashed: in the network: SIGSEGV"
    assert not failing.rejected
    later, works = runs_of(made, database)
    assert fail(later, works, executable, None) == failed
    assert (len(runs.known.told), len(later.known.told)) == (1, 0)


def test_a_want_of_memory_may_be_over_in_the_next_compile(
    made: Made, executable: Executable, database: Database
) -> None:
    runs, failing = runs_of(made, database)
    fail(runs, failing, executable, (None, Rejection(RejectionKind.MEMORY, "no memory")))
    fail(runs, failing, executable, None)
    runs_of(made, database)[0].open(executable)


def test_a_kernel_that_only_fails_here_is_blamed_by_itself(
    made: Made, executable: Executable, database: Database
) -> None:
    runs, failing = runs_of(made, database)
    failing.error = OSError("not here")
    with pytest.raises(RaceFailedError) as raised:
        runs.load(executable, made.bench.assembler)
    assert isinstance(raised.value.__cause__, OSError)
    assert failing.rejected[0][1].message == "in the process that compiles: not here"


@pytest.mark.parametrize(
    "error", [MemoryError(), OSError("CUDA_ERROR_OUT_OF_MEMORY: out of memory")], ids=["host", "GPU"]
)
def test_a_lack_of_memory_in_this_process_is_no_kernels_fault(
    made: Made, executable: Executable, database: Database, error: Exception
) -> None:
    """The plan is left out of this compile, and the next one may use it."""
    runs, failing = runs_of(made, database)
    failing.error = error
    with pytest.raises(RaceFailedError):
        runs.load(executable, made.bench.assembler)
    assert failing.rejected == []
    fail(runs, failing, executable, None)
    runs_of(made, database)[0].open(executable)


@pytest.mark.parametrize(
    "error",
    [MeasurementError("No space left on the device"), OSError(errno.ENOSPC, "No space left on device")],
)
def test_a_full_disk_is_no_kernels_fault(
    made: Made, executable: Executable, database: Database, error: Exception
) -> None:
    runs, failing = runs_of(made, database)
    failing.error = error
    with pytest.raises(MeasurementError, match="No space left"):
        runs.load(executable, made.bench.assembler)
    assert failing.rejected == []
    runs.open(executable)


def test_results_of_networks_are_of_one_edition_of_the_kernels(made: Made, executable: Executable) -> None:
    """The version of a backend is that of its library, and does not tell it."""
    other = Made(each_node("lib", 1.0), Counted("lib", team=True))
    again = other.bench.assembler.assemble(Placed(place(other.measured().bench)), {})
    assert again.versions == executable.versions and again.digest != executable.digest


class Counted(NullBackend):
    """The same backend, with kernels of another edition."""

    def settings(self, options: BuildOptions) -> str:
        return "edition 2"
