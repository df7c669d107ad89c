"""Records of tuning: made in the worker, kept with the measurement, handed to codegen, never made twice."""

from __future__ import annotations

import time
from typing import ClassVar

import collage
from collage.backends.base import UnsupportedError
from collage.frontend.model import Model
from collage.frontend.subgraph import Subgraph
from collage.kernel.options import BuildOptions
from collage.measure.measured_model import MeasuredModel
from collage.measure.measurer import Measurer
from collage.measure.rivals import Rivals
from collage.measure.settings import CandidateLimits, MeasureSettings
from collage.measure.worker.protocol import CandidateRequest
from collage.measure.worker.session import WorkerSession
from collage.measure_db.database import Database
from collage.measure_db.results import Measurement, Outcome, Rejection, RejectionKind, Slower
from tests.helpers.backends_for_tests import NumpyBackend

ADD, RELU, TANH = (CandidateRequest((node,), "tuner") for node in range(3))


class Tuner(collage.Tuner, NumpyBackend):
    """Tunes tanh, slowly, and needs the record to build it."""

    name: ClassVar[str] = "tuner"

    def settings(self, options: BuildOptions) -> str:
        return f"{options.tune_trials} trials" if options.tune_trials else ""

    def tunes(self, subgraph: Subgraph) -> bool:
        return "tanh" in subgraph.ops

    def tune(self, subgraph: Subgraph, options: BuildOptions) -> str:
        time.sleep(2.5)
        if options.tune_trials == 7:
            raise RuntimeError("nothing found")
        return f"best of {options.tune_trials}"

    def codegen(self, subgraph: Subgraph, options: BuildOptions) -> bytes:
        if self.tunes(subgraph) and options.tuning != "best of 3":
            raise UnsupportedError("needs trials")
        return super().codegen(subgraph, options)


def measurer_of(model: Model, database: Database, trials: int) -> Measurer:
    options = BuildOptions(1, trials)
    settings = MeasureSettings({"tuner": Tuner()}, {"tuner": "1"}, options, "test machine", limits=CandidateLimits(2.0))
    return Measurer(WorkerSession(MeasuredModel(model), settings), database)


def measure(
    model: Model, database: Database, trials: int, *requests: CandidateRequest
) -> tuple[dict[CandidateRequest, Outcome], int]:
    with measurer_of(model, database, trials) as measurer:
        return measurer.measure(requests), measurer.measurements_made


def test_a_record_is_kept_with_the_measurement_and_tuning_has_its_own_time(model: Model, database: Database) -> None:
    found, made = measure(model, database, 3, RELU, TANH)
    relu, tanh = found[RELU], found[TANH]
    assert isinstance(relu, Measurement)
    assert isinstance(tanh, Measurement)
    assert (relu.tuning, tanh.tuning) == ("", "best of 3")
    assert made == 2
    assert measure(model, database, 3, RELU, TANH) == (found, 0)


def test_failing_to_tune_is_a_rejection(model: Model, database: Database) -> None:
    found, _ = measure(model, database, 7, TANH)
    assert found[TANH] == Rejection(RejectionKind.FAILED, "tune: RuntimeError: nothing found")


def test_what_lost_a_race_is_built_from_its_record(model: Model, database: Database) -> None:
    with measurer_of(model, database, 4) as measurer:  # four trials would not find what can be built
        database.put(measurer.key(TANH), Slower(50.0, 40.0, 3, tuning="best of 3"))
        found = measurer.measure([TANH])[TANH]
    assert isinstance(found, Measurement) and found.tuning == "best of 3"


def test_a_loss_is_raced_again_if_the_incumbent_takes_longer_now(model: Model, database: Database) -> None:
    """No kernel of these nodes was measured: all of them took longer than the part of the network they are."""
    lost = Slower(50.0, 50.0, 3)
    with measurer_of(model, database, 0) as measurer:
        database.put(measurer.key(RELU), lost)
        assert measurer.race([RELU], Rivals(share_us=lambda _: 40.0)) == {RELU: lost}
        assert measurer.measurements_made == 0
        assert measurer.race([RELU], Rivals(share_us=lambda _: 100.0))[RELU] != lost
        assert measurer.measurements_made == 1
