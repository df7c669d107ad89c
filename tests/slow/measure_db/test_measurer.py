"""The measurer survives every backend, says what was wrong with each, and measures nothing twice."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from collage.backends.base import Backend
from collage.core.progress import Progress
from collage.errors import MeasurementError, UsageError
from collage.frontend.model import Model, import_model
from collage.frontend.original import AsLoaded
from collage.kernel.options import BuildOptions
from collage.measure.measured_model import MeasuredModel
from collage.measure.measurer import Measurer
from collage.measure.settings import CandidateLimits, MeasureSettings
from collage.measure.timing.effort import FULL, Effort
from collage.measure.worker.process import WorkerProcess
from collage.measure.worker.protocol import CandidateRequest
from collage.measure.worker.session import WorkerSession
from collage.measure_db.database import Database
from collage.measure_db.results import Measurement, Outcome, Rejection, RejectionKind, Slower
from tests.helpers.backends_for_tests import NumpyBackend, chain_model, onnx_model
from tests.helpers.measure_db import hostile

OPTIONS = BuildOptions(threads=1)
LIMITS = CandidateLimits(30.0)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files of its own, to see what is left there."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def measurer(
    model: Model,
    database: Database,
    *backends: Backend,
    limits: CandidateLimits = LIMITS,
    progress: Callable[[Progress], None] | None = None,
    version: str = "1.0",
    effort: Effort = FULL,
) -> Measurer:
    named = {backend.name: backend for backend in backends or (NumpyBackend(),)}
    versions = dict.fromkeys(named, version)
    settings = MeasureSettings(named, versions, OPTIONS, "test machine", effort, limits)
    measured = MeasuredModel(model, as_loaded=AsLoaded.of(model.onnx))
    return Measurer(WorkerSession(measured, settings), database, progress)


def test_the_slower_kernel_of_a_race_is_let_go(model: Model, database: Database) -> None:
    numpy, slow = CandidateRequest((0,), "numpy"), CandidateRequest((0,), "slow")
    with measurer(model, database, NumpyBackend(), hostile.Slow()) as first:
        found = first.race([numpy, slow])
        assert first.measurements_made == 2
        lost = found[slow]
        assert isinstance(found[numpy], Measurement) and isinstance(lost, Slower)
        assert lost.least_us > 100.0 > lost.rival_us == found[numpy].median_us
    with measurer(model, database, NumpyBackend(), hostile.Slow()) as second:
        assert second.race([numpy, slow]) == found
        assert second.measurements_made == 0
        to_the_end = second.measure([slow])[slow]
        assert isinstance(to_the_end, Measurement) and to_the_end.min_us >= 1000.0
        assert second.race([numpy, slow])[slow] == to_the_end


def test_what_lost_against_another_backend_is_raced_again_with_a_slower_one(model: Model, database: Database) -> None:
    """Nobody knows by how much it is faster than the one that is left."""
    fast, slow, slowest = (CandidateRequest((0,), name) for name in ("numpy", "slow", "slowest"))
    with measurer(model, database, hostile.Slowest()) as alone:
        assert isinstance(alone.race([slowest])[slowest], Measurement)
    with measurer(model, database, NumpyBackend(), hostile.Slow()) as both:
        assert isinstance(both.race([fast, slow])[slow], Slower)
    with measurer(model, database, hostile.Slowest(), hostile.Slow()) as left:
        found = left.race([slowest, slow])[slow]
        assert isinstance(found, Measurement) and found.median_us < 4000


def test_a_good_backend_is_measured(model: Model, database: Database) -> None:
    requests = [
        CandidateRequest((0,), "numpy"),
        CandidateRequest((0, 1), "numpy"),
        CandidateRequest((0, 1, 2, 3), "numpy"),
    ]
    seen: list[Progress] = []
    with measurer(model, database, progress=seen.append) as first:
        found = first.measure(requests)
        assert first.measurements_made == 3
    for outcome in found.values():
        assert isinstance(outcome, Measurement)
        assert 0 < outcome.min_us <= outcome.median_us
        assert outcome.repeats >= 7
        assert outcome.max_error < 1e-6
    assert [(p.done, p.total) for p in seen] == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert seen[2].text == "numpy: add+relu"


def test_what_is_known_is_not_measured_again(
    model: Model, database: Database, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [
        CandidateRequest((0,), "numpy"),
        CandidateRequest((1,), "raises-codegen"),
        CandidateRequest((1,), "numpy"),
    ]
    backends = (NumpyBackend(), hostile.RaisesInCodegen())
    with measurer(model, database, *backends) as first:
        found = first.measure(requests)
        wrong = first.verify()
        epsilon = first.epsilon_us()
        assert isinstance(found[requests[1]], Rejection)
        assert epsilon > 0
        assert wrong == {}
    monkeypatch.setattr(WorkerProcess, "__init__", lambda *_, **__: pytest.fail("a worker was started"))
    with measurer(chain_model(), database, *backends) as second:
        assert second.measure(requests) == found
        assert second.verify() == wrong
        assert second.epsilon_us() == epsilon
        assert second.measurements_made == 0
    assert list(temporary.iterdir()) == []


def test_extraordinary_values_are_those_of_the_weights(database: Database) -> None:
    """A mask of -1e4 and one of negative infinity differ in a constant alone."""

    def masked(by: float) -> Model:
        mask = np.full((32, 32), by, np.float32)
        kind = ((32, 32), TensorProto.FLOAT)
        nodes = [helper.make_node("Add", ["x", "mask"], ["s"]), helper.make_node("Tanh", ["s"], ["y"])]
        return import_model(onnx_model(nodes, {"x": kind}, {"y": kind}, {"mask": mask}))

    found = []
    for by in (-1e4, -np.inf, -1e4):
        with measurer(masked(by), database) as one:
            one.verify()
            found.append({one.model.graph.values[value].name for value in one.extraordinary})
    assert found == [set(), {"s"}, set()]
    with measurer(masked(-np.inf), database) as unknown:
        unknown.measured.__dict__["serialised_digest"] = None
        unknown.verify()
        assert unknown.extraordinary


def test_equal_subgraphs_are_measured_once(database: Database) -> None:
    nodes = [helper.make_node("Relu", ["x" if i == 0 else f"t{i - 1}"], [f"t{i}"]) for i in range(4)]
    kind = ((4, 4), TensorProto.FLOAT)
    relus = import_model(onnx_model(nodes, {"x": kind}, {"t3": kind}))
    requests = [CandidateRequest((n,), "numpy") for n in range(len(relus.graph.nodes))]
    with measurer(relus, database) as one:
        outcomes = one.measure(requests)
        assert len(requests) == 4
        assert one.measurements_made == 1
    assert len(set(outcomes.values())) == 1


@pytest.fixture(scope="module")
def hostile_outcomes(model: Model, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Each hostile backend on one operator, one after the other in one measurer, a good one last."""
    with Database(tmp_path_factory.mktemp("hostile") / "db.sqlite") as database:
        one = measurer(model, database, *hostile.ALL, limits=CandidateLimits(2.0, 3 << 30))
        with one:
            found = one.measure([CandidateRequest((1,), backend.name) for backend in hostile.ALL])
            assert one.measurements_made == len(hostile.ALL)
        assert set(database.get(one.key(r) for r in found).values()) == set(found.values())
        return {request.backend: outcome for request, outcome in found.items()}


@pytest.mark.parametrize(
    ("backend", "kind", "words"),
    [
        ("segfault", RejectionKind.CRASHED, ["SIGSEGV", "about to read address 8"]),
        ("hang", RejectionKind.TIMEOUT, ["more than 2 s"]),
        ("hang-with-lock", RejectionKind.TIMEOUT, ["more than 2 s"]),
        ("wrong", RejectionKind.INACCURATE, ["output 0 differs by 1.0e-03"]),
        ("unwritten", RejectionKind.INACCURATE, ["3 elements", "never written"]),
        ("accumulates", RejectionKind.INACCURATE, ["later run"]),
        ("writes-inputs", RejectionKind.INACCURATE, ["writes to its inputs"]),
        ("bomb", RejectionKind.MEMORY, ["run: ", "MemoryError"]),
        ("killed", RejectionKind.MEMORY, ["SIGKILL", "out of memory"]),
        ("terminates", RejectionKind.MEMORY, ["SIGABRT", "bad_alloc"]),
        ("exits", RejectionKind.CRASHED, ["status 7"]),
        ("system-exits", RejectionKind.FAILED, ["run: SystemExit: enough"]),
        ("raises-later", RejectionKind.FAILED, ["run: RuntimeError: worn out"]),
        ("closes-files", RejectionKind.CRASHED, ["pipe"]),
        ("raises-codegen", RejectionKind.FAILED, ["codegen: ValueError: no such layout"]),
        ("raises-load", RejectionKind.FAILED, ["load: OSError: missing symbol"]),
        ("raises-bind", RejectionKind.FAILED, ["bind: TypeError: odd buffers"]),
        ("unsupported", RejectionKind.UNSUPPORTED, ["needs a 4-D tensor"]),
    ],
)
def test_hostile_backend(
    hostile_outcomes: dict[str, Outcome], backend: str, kind: RejectionKind, words: list[str]
) -> None:
    outcome = hostile_outcomes[backend]
    assert isinstance(outcome, Rejection)
    assert outcome.kind is kind
    for word in words:
        assert word in outcome.message


@pytest.mark.parametrize("backend", ["chatty", "numpy"])
def test_decent_backend_among_hostile_ones(hostile_outcomes: dict[str, Outcome], backend: str) -> None:
    assert isinstance(hostile_outcomes[backend], Measurement)


def test_unknown_backends_are_all_named(model: Model, database: Database) -> None:
    with measurer(model, database) as one, pytest.raises(UsageError, match=r"foo, nope\. Valid: numpy"):
        one.measure([CandidateRequest((0,), "nope"), CandidateRequest((0,), "foo")])


def test_interrupting_keeps_what_is_measured(model: Model, database: Database, temporary: Path) -> None:
    requests = [CandidateRequest((n,), "numpy") for n in range(4)]

    def interrupt(progress: Progress) -> None:
        if progress.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), measurer(model, database, progress=interrupt) as one:
        one.measure(requests)
    assert list(temporary.iterdir()) == []
    assert one.session._init is None
    assert len(database.get(one.key(request) for request in requests)) == 2


def test_interrupting_a_wait_kills_the_worker(
    model: Model, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with measurer(model, database, hostile.Hang(), NumpyBackend()) as one:
        one.measure([CandidateRequest((0,), "numpy")])
        worker = one.session.worker(OPTIONS.threads)
        assert worker.alive

        def interrupted(fd: int, limit_s: float) -> object:
            raise KeyboardInterrupt

        monkeypatch.setattr("collage.core.child_process.read_message", interrupted)
        with pytest.raises(KeyboardInterrupt):
            one.measure([CandidateRequest((1,), "hang")])
        assert not worker.alive


_NOTEBOOK = """
from tests.helpers.backends_for_tests import NumpyBackend
SCALE = 1

class Local(NumpyBackend):
    name = "local"

    def codegen(self, subgraph, options):
        assert SCALE == 1
        return super().codegen(subgraph, options)
"""


def test_a_backend_that_a_notebook_defines(model: Model, database: Database) -> None:
    notebook: dict[str, Any] = {"__name__": "__main__"}
    exec(_NOTEBOOK, notebook)
    with measurer(model, database, notebook["Local"]()) as one:
        (outcome,) = one.measure([CandidateRequest((0,), "local")]).values()
    assert isinstance(outcome, Measurement)


def test_backend_that_cannot_be_sent(model: Model, database: Database, temporary: Path) -> None:
    class Holding(NumpyBackend):
        def __init__(self) -> None:
            self.lock = threading.Lock()

    error = pytest.raises(MeasurementError, match="backend numpy cannot be sent")
    with measurer(model, database, Holding()) as one, error:
        one.measure([CandidateRequest((0,), "numpy")])
    assert list(temporary.iterdir()) == []


def test_a_worker_that_does_not_start_says_why(
    model: Model, database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "tvm.py").write_text("raise ImportError('libtvm is broken')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with (
        measurer(model, database) as one,
        pytest.raises(MeasurementError, match=r"did not start.*libtvm is broken"),
    ):
        one.measure([CandidateRequest((0,), "numpy")])


def test_models_with_their_weights_outside_reach_the_worker(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(proto: onnx.ModelProto, path: Path) -> None:
        copy = onnx.ModelProto()
        copy.CopyFrom(proto)
        onnx.save_model(copy, str(path), save_as_external_data=True, location="model.bin", size_threshold=0)

    monkeypatch.setattr("collage.measure.worker.session.save_model", save)
    with measurer(chain_model((64, 1024)), database) as one:
        (outcome,) = one.measure([CandidateRequest((0,), "numpy")]).values()
        assert (Path(one.session.folder) / "model.bin").exists()
        assert isinstance(outcome, Measurement)
