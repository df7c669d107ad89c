"""What is known before measuring: losses of kernels of the same operators, from a database and from a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from collage.graph.storage import BLOCKED
from collage.kernel.options import BuildOptions, Variant
from collage.measure import prior
from collage.measure.measured_model import MeasuredModel
from collage.measure.measurer import Measurer
from collage.measure.prior import (
    REGION,
    WITHOUT_VARIABLE,
    Loss,
    class_of,
    known_losses,
    losses_in,
    read_prior,
)
from collage.measure.request_keys import variant_text
from collage.measure.settings import MeasureSettings
from collage.measure.worker.protocol import CandidateRequest, TryKernel
from collage.measure.worker.session import WorkerSession
from collage.measure_db.database import Database, KernelKey
from collage.measure_db.results import Measurement, Slower
from scripts.lib.prior import write_prior
from tests.helpers.backends_for_tests import NumpyBackend, chain_model

IN_BLOCKS = variant_text(Variant((BLOCKED,), (BLOCKED,)))
HERE = "AMD EPYC, cpu family 25 abc"
PLACE = "AMD abc on 2"


def key(digest: str, backend: str, variant: str = "", hardware: str = HERE) -> KernelKey:
    return KernelKey(digest, backend, "1", f"{variant}set", 2, hardware, "0.27")


def took(us: float) -> Measurement:
    return Measurement(us, 0.0, us, 10, 0.0)


@pytest.fixture
def database(tmp_path: Path) -> Database:
    made = Database(tmp_path / "db.sqlite")
    for number in range(4):
        digest = f"shape{number}"
        made.put(key(digest, "fast"), took(10.0), "conv2d+add")
        made.put(key(digest, "slow"), Slower(20.0, 10.0, 3), "conv2d+add")
        made.put(key(digest, "slow", IN_BLOCKS), took(15.0 if number else 5.0), "conv2d+add (blocked)")
        REGION.at(f"{digest} net{number % 2}").record(made, f"conv2d+add|{10 + (number == 0)}|9")
    made.put(key("other", "fast", hardware="Intel xyz"), took(9.0), "conv2d+add")
    return made


def test_losses_are_those_of_regions_of_the_same_class_then_of_the_same_operators(database: Database) -> None:
    losses = known_losses(database, HERE, 2, Path("none.json"))
    assert losses.expected("conv2d+add|10|9", ("slow", IN_BLOCKS)) == pytest.approx(0.405, abs=0.01)
    assert losses.expected("conv2d+add|11|9", ("slow", IN_BLOCKS)) == 0.0
    assert 0.0 < losses.expected("conv2d+add|20|9", ("slow", IN_BLOCKS)) < 0.405
    assert losses.expected("dense|1|1", ("slow", "")) > losses.expected("dense|1|1", ("fast", ""))
    assert losses.expected("dense|1|1", ("new", "")) == prior._PRIOR
    elsewhere = known_losses(database, "Intel uvw", 2, Path("none.json"))
    assert elsewhere.expected("conv2d+add|10|9", ("slow", "")) == prior._PRIOR


def test_a_file_holds_what_databases_tell_and_leaves_a_network_out(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "prior.json"
    found = losses_in(database)
    assert found.keys() == {PLACE}  # elsewhere nobody has lost against nobody
    write_prior(path, found)
    assert {each.network for each in read_prior(path)[PLACE]} == {"net0", "net1"}
    with Database(tmp_path / "empty.sqlite") as empty:
        about = "conv2d+add|11|9", ("slow", IN_BLOCKS)
        assert known_losses(empty, HERE, 2, path).expected(*about) == 0.0
        monkeypatch.setenv(WITHOUT_VARIABLE, "net0")
        assert known_losses(empty, HERE, 2, path).expected(*about) == pytest.approx(0.41, abs=0.01)


def test_a_file_is_small(tmp_path: Path) -> None:
    rows = [
        Loss("net", f"conv2d{number}|1|1", ("native", "[a -> b; c]"), 1 + (number < 9), 0.25) for number in range(5000)
    ]
    assert 9 <= write_prior(tmp_path / "prior.json", {PLACE: rows}, 50_000) < 5000
    assert (tmp_path / "prior.json").stat().st_size <= 50_000
    assert {each.region for each in read_prior(tmp_path / "prior.json")[PLACE]} >= {
        "conv2d0|1|1",
        "conv2d8|1|1",
    }


@pytest.mark.parametrize("better", ["one", "other"])
def test_it_decides_the_order_of_measuring(better: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing else: all candidates are tried, and the fastest is the same."""
    model, options = chain_model(), BuildOptions(threads=1)
    backends = {name: type(name, (NumpyBackend,), {"name": name})() for name in ("one", "other")}
    region = class_of(MeasuredModel(model).subgraph((0,)))
    rows = [Loss("net", region, (name, ""), 3, 0.0 if name == better else 1.0) for name in backends]
    write_prior(tmp_path / "prior.json", {"test machine on 1": rows})
    monkeypatch.setattr(prior, "FILE", tmp_path / "prior.json")
    monkeypatch.setattr(known_losses, "__defaults__", (tmp_path / "prior.json",))
    tried: list[str] = []
    usual = WorkerSession.ask

    def ask(self: WorkerSession, message: object, what: str, threads: int) -> object:
        if isinstance(message, TryKernel):
            tried.append(message.request.backend)
        return usual(self, message, what, threads)

    monkeypatch.setattr(WorkerSession, "ask", ask)
    settings = MeasureSettings(backends, dict.fromkeys(backends, "1"), options, "test machine")
    with Database(tmp_path / "db.sqlite") as database:
        with Measurer(WorkerSession(MeasuredModel(model), settings), database) as measurer:
            found = measurer.race([CandidateRequest((0,), name) for name in backends])
        assert tried == [better, next(name for name in backends if name != better)]
        assert len(found) == 2
        assert [each for each, _ in database.facts_of(REGION.name)] == [
            f"{MeasuredModel(model).subgraph((0,)).digest} {model.name}"
        ]
