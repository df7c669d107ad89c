"""What is blamed for a plan that fails, without a worker that runs it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from collage.compiler.executable import Executable
from collage.compiler.placing import place
from collage.compiler.plan import MIX, Placed
from collage.compiler.plan_failures import KernelRejectedError, PlanDroppedError, PlanFailures
from collage.errors import MeasurementError
from collage.kernel.options import BuildOptions
from collage.measure.plans import PlanFailedError
from collage.measure.worker.plan_protocol import PlanKernel
from collage.measure_db.database import Database
from collage.measure_db.results import Rejection, RejectionKind
from tests.helpers.compiler.null import TARGET, Made, NullBackend, each_node

CRASHED = Rejection(RejectionKind.CRASHED, "SIGSEGV")


class Rejecting:
    """A measurer that only takes rejections."""

    def __init__(self, made: Made) -> None:
        self.model = made.bench.model
        self.kernels = self
        self.rejected: list[tuple[PlanKernel, Rejection]] = []

    def reject(self, kernel: PlanKernel, rejection: Rejection) -> None:
        self.rejected.append((kernel, rejection))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database(tmp_path / "db.sqlite") as database:
        yield database


@pytest.fixture
def made() -> Made:
    return Made(each_node("lib", 1.0), NullBackend("lib", team=True))


@pytest.fixture
def executable(made: Made) -> Executable:
    return made.bench.assembler.assemble(Placed(MIX, place(made.measured().bench)), {})


def fail(failures: PlanFailures, executable: Executable, launch: int | None, rejection: Rejection) -> None:
    with failures.blaming([executable]):
        raise PlanFailedError(executable.job, launch, rejection)


def failures_of(made: Made, database: Database) -> tuple[PlanFailures, Rejecting]:
    measurer = Rejecting(made)
    return PlanFailures(cast(Any, measurer), database, TARGET), measurer


def test_a_kernel_is_rejected_with_the_place(made: Made, executable: Executable, database: Database) -> None:
    failures, measurer = failures_of(made, database)
    with pytest.raises(KernelRejectedError) as raised:
        fail(failures, executable, 1, CRASHED)
    assert raised.value.kernel == executable.kernels[1]
    ((kernel, rejection),) = measurer.rejected
    assert kernel == executable.kernels[1]
    assert rejection.message == "in the network, after lib relu: SIGSEGV"
    (told,) = failures.told
    assert told.text == "mix: lib tanh: crashed: in the network, after lib relu: SIGSEGV; not used"


def test_what_nobody_is_to_blame_for_is_dropped_and_remembered(
    made: Made, executable: Executable, database: Database
) -> None:
    failures, measurer = failures_of(made, database)
    failures.refuse_dropped(executable)
    with pytest.raises(PlanDroppedError, match="fails as a whole: crashed: in the network: SIGSEGV"):
        fail(failures, executable, None, CRASHED)
    assert not measurer.rejected
    later, _ = failures_of(made, database)
    with pytest.raises(PlanDroppedError, match="crashed: in the network: SIGSEGV"):
        later.refuse_dropped(executable)
    assert (len(failures.told), len(later.told)) == (1, 0)


def test_a_want_of_memory_may_be_over_in_the_next_compile(
    made: Made, executable: Executable, database: Database
) -> None:
    failures, _ = failures_of(made, database)
    with pytest.raises(PlanDroppedError):
        fail(failures, executable, None, Rejection(RejectionKind.MEMORY, "no memory"))
    with pytest.raises(PlanDroppedError):
        failures.refuse_dropped(executable)
    failures_of(made, database)[0].refuse_dropped(executable)


def test_a_kernel_that_only_fails_here_is_blamed_by_itself(
    made: Made, executable: Executable, database: Database
) -> None:
    failures, measurer = failures_of(made, database)
    with pytest.raises(KernelRejectedError) as raised, failures.here(executable, 2):
        raise OSError("not here")
    assert isinstance(raised.value.__cause__, OSError)
    assert measurer.rejected[0][1].message == "in the process that compiles: not here"


@pytest.mark.parametrize(
    "error", [MemoryError(), OSError("CUDA_ERROR_OUT_OF_MEMORY: out of memory")], ids=["host", "GPU"]
)
def test_a_lack_of_memory_in_this_process_is_no_kernels_fault(
    made: Made, executable: Executable, database: Database, error: Exception
) -> None:
    """The plan is left out of this compile, and the next one may use it."""
    failures, measurer = failures_of(made, database)
    with pytest.raises(PlanDroppedError), failures.here(executable, 2):
        raise error
    assert measurer.rejected == []
    failures_of(made, database)[0].refuse_dropped(executable)


@pytest.mark.parametrize(
    "error",
    [MeasurementError("No space left on the device"), OSError(errno.ENOSPC, "No space left on device")],
)
def test_a_full_disk_is_no_kernels_fault(
    made: Made, executable: Executable, database: Database, error: Exception
) -> None:
    failures, measurer = failures_of(made, database)
    with pytest.raises(MeasurementError, match="No space left"), failures.here(executable, 2):
        raise error
    assert measurer.rejected == []
    failures.refuse_dropped(executable)


def test_results_of_networks_are_of_one_edition_of_the_kernels(made: Made, executable: Executable) -> None:
    """The version of a backend is that of its library, and does not tell it."""
    other = Made(each_node("lib", 1.0), Counted("lib", team=True))
    again = other.bench.assembler.assemble(Placed(MIX, place(other.measured().bench)), {})
    assert again.versions == executable.versions and again.digest != executable.digest


class Counted(NullBackend):
    """The same backend, with kernels of another edition."""

    def settings(self, options: BuildOptions) -> str:
        return "edition 2"
