"""Second compiles: what a finished compile has found is there again, unless something that it rests on has changed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import collage
from collage.backends.layout import LayoutTransforms
from collage.backends.registry import builtin_registry
from collage.backends.view import View
from collage.compiler import placing
from collage.compiler.clock import Budget
from collage.compiler.compile import compile_model
from collage.compiler.plan import FOLDED, Plan, Whole
from collage.compiler.record import FINISHED
from collage.compiler.task import CompileOptions
from collage.kernel.options import BuildOptions
from collage.kernel.target import host
from collage.measure.worker.process import Workers
from collage.measure_db.database import Database
from collage.measure_db.exchange import JUDGEMENTS, merge, usable_here
from tests.helpers.beside import Beside, Slow
from tests.helpers.finished import finished_in, nothing_but_recalled, rows
from tests.helpers.models import conv_net, elementwise_net, make_model
from tests.helpers.preferred import is_mix, preferred

BACKENDS = ["onednn", "onnxruntime"]


def input_of(model: onnx.ModelProto) -> np.ndarray:
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module", autouse=True)
def workers() -> Iterator[None]:
    """One for all compiles: most of a start is importing TVM."""
    with Workers() as kept:
        _workers.append(kept)
        yield


_workers: list[Workers] = []


def is_folded(plan: Plan) -> bool:
    return isinstance(plan, Whole) and plan.form == FOLDED


def compiled(
    model: onnx.ModelProto,
    db: Path,
    registry: collage.Registry | None = None,
    wanted: Callable[[Plan], bool] = is_mix,
    **options: Any,
) -> collage.CompiledModule:
    asked = CompileOptions(**{"backends": BACKENDS, "threads": 2, "db": db, **options})
    chosen = builtin_registry() if registry is None else registry
    with preferred(wanted):
        return compile_model(model, asked, chosen, lambda _: None, _workers[-1])


def same(first: collage.CompiledModule, again: collage.CompiledModule, model: onnx.ModelProto) -> None:
    """The two modules are the same, and so is what is told of them, but for how long it took to find."""
    assert again.program == first.program
    x = input_of(model)
    assert np.array_equal(np.asarray(again(x)), np.asarray(first(x)))
    told, before = again.summary(), first.summary()
    for each in (told, before):
        for name in "measurements_made spent_s search_s compile_s budget_s best_so_far first_mix".split():
            del each[name]
        for node in each["nodes"]:
            node["candidates"].sort(key=str)
    assert len(told.pop("nodes")) == len(before.pop("nodes"))
    assert told == before
    for node in again.summary()["nodes"]:
        assert [each["verdict"] for each in node["candidates"]].count("chosen") == 1
    key = [(c.candidate, c.pattern) for c in first.report.candidates]
    assert {(c.candidate, c.pattern) for c in again.report.candidates} <= {*key}


def nothing() -> onnx.ModelProto:
    """Without an operator: its output is its input."""
    return make_model([helper.make_node("Identity", ["x"], ["y"])], {"x": [2, 3]}, {"y": [2, 3]})


CASES: Sequence[Any] = (
    pytest.param(conv_net, {"backends": ["onnxruntime"], "wanted": is_folded}, id="one engine"),
    pytest.param(conv_net, {"backends": ["onednn"], "threads": 1}, id="no engine"),
    pytest.param(conv_net, {"graph_level_s": 1.0}, id="graph level"),
    pytest.param(conv_net, {"tolerance": 0.1}, id="tolerance"),
    pytest.param(nothing, {}, id="no operators"),
)


@pytest.mark.parametrize(("make", "options"), CASES)
def test_a_second_compile_finds_the_same_at_once(make: Any, options: dict[str, Any], tmp_path: Path) -> None:
    model, db = make(), tmp_path / "db.sqlite"
    first = compiled(model, db, **options)
    assert first.report.measurements_made > 0
    assert finished_in(db) == 1
    with nothing_but_recalled():
        again = compiled(model, db, **options)
    assert again.report.measurements_made == 0
    same(first, again, model)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, collage.CompiledModule]:
    """A database with a finished compile, of which tests make copies, and its module."""
    path = tmp_path_factory.mktemp("db") / "db.sqlite"
    return path, compiled(conv_net(), path)


@pytest.fixture
def database(first: tuple[Path, collage.CompiledModule]) -> Path:
    return first[0]


@pytest.fixture
def copy(database: Path, tmp_path: Path) -> Path:
    path = tmp_path / "copy.sqlite"
    rows(database, f"VACUUM INTO '{path}'")
    return path


def searched(db: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> collage.CompiledModule | None:
    """The module of a compile, or None where it was recalled."""
    placed = []
    place = placing.placed
    with monkeypatch.context() as patch:
        patch.setattr(placing, "placed", lambda *about, **more: placed.append(1) or place(*about, **more))
        module = compiled(conv_net(), db, **options)
    return module if placed else None


def test_a_compile_with_a_budget_recalls_a_finished_one(copy: Path, first: tuple[Path, collage.CompiledModule]) -> None:
    with nothing_but_recalled():
        module = compiled(conv_net(), copy, budget=Budget.of(60.0))
    assert (module.report.ended, module.report.measurements_made) == ("finished", 0)
    same(first[1], module, conv_net())


@pytest.mark.parametrize("options", [{"seed": 7}, {"streams": False}], ids=str)
def test_other_options_search_again(options: dict[str, Any], copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert searched(copy, monkeypatch, **options) is not None
    assert finished_in(copy) == 2


def test_remeasuring_searches_again_and_replaces_it(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = rows(copy, f"SELECT created FROM facts WHERE name = '{FINISHED.name}'")
    module = searched(copy, monkeypatch, since=time.time())
    assert module is not None and module.report.measurements_made > 0
    assert rows(copy, f"SELECT created FROM facts WHERE name = '{FINISHED.name}'") > before
    assert searched(copy, monkeypatch) is None


CHANGES = (
    "UPDATE kernels SET median_us = NULL, noise_us = NULL, min_us = NULL, repeats = NULL, max_error = NULL, "
    "rival_us = NULL, rejection = 'crashed', message = 'SIGSEGV' WHERE backend = '{}'",
    "DELETE FROM kernels WHERE backend = '{}'",
)


@pytest.mark.parametrize("change", CHANGES, ids=["rejected", "deleted"])
def test_a_changed_kernel_makes_it_out_of_date(change: str, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compiled(conv_net(), copy)
    kernels = [each for each in first.program.launches if not each.is_transform and each.backend != "view"]
    chosen = kernels[0].backend
    rows(copy, change.format(chosen))
    again = searched(copy, monkeypatch)
    assert again is not None
    if "crashed" in change:
        assert chosen not in {each.backend for each in again.program.launches}
    if "DELETE" in change:
        assert again.report.measurements_made > 0


def test_an_unreadable_row_is_replaced(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ('{"plan": 7}', "[]", "null"):
        rows(copy, f"UPDATE facts SET value = '{value}' WHERE name = '{FINISHED.name}'")
        assert searched(copy, monkeypatch) is not None
    assert searched(copy, monkeypatch) is None


def test_it_travels_with_the_database_and_is_checked_there(copy: Path, tmp_path: Path) -> None:
    first = compiled(conv_net(), copy)
    versions = first.report.versions
    with Database(tmp_path / "other.sqlite") as other, Database(copy) as known:
        merge(other, known, usable_here(host().measured_on, versions))
        assert not any(rows(other.path, f"SELECT 1 FROM facts WHERE name = '{name}'") for name in JUDGEMENTS)
    again = compiled(conv_net(), tmp_path / "other.sqlite")
    assert again.report.measurements_made <= 1  # engines on the whole model are looked at here
    assert again.program == first.program
    ((checks,),) = rows(tmp_path / "other.sqlite", "SELECT count(*) FROM facts WHERE name = 'final_check'")
    assert checks >= 1


class Fleeting(Beside):
    """Its kernels are fast, and can be loaded as long as a file is there."""

    name = "fleeting"

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file

    def load(self, artifact: bytes, options: BuildOptions) -> Any:
        if not self.file.exists() and os.getpid() == self.home:
            raise OSError("gone")
        return super().load(artifact, options)


def test_a_kernel_that_fails_when_it_is_recalled_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "there"
    file.touch()
    registry = collage.Registry()
    for backend in (View(), LayoutTransforms(), Fleeting(file), Slow()):
        registry.register(backend)
    options: dict[str, Any] = {"registry": registry, "backends": None, "threads": 1}
    db, model = tmp_path / "db.sqlite", elementwise_net()
    first = compiled(model, db, **options)
    assert "fleeting" in {each.backend for each in first.program.launches}
    with nothing_but_recalled():
        assert compiled(model, db, **options).program == first.program
    file.unlink()
    again = compiled(model, db, **options)
    assert {each.backend for each in again.program.executed} == {"onnxruntime"}
    assert any("gone" in note for note in again.report.notes)
    x = input_of(model)
    np.testing.assert_allclose(again(x), first(x), rtol=1e-5)
    with nothing_but_recalled():
        assert compiled(model, db, **options).program == again.program
