"""Kinds of inputs that a kernel was not tried on do not count as passed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collage.backends.base import BackendKind
from collage.check import samples
from collage.check.input_kinds import KINDS
from collage.check.reference import evaluate
from collage.check.samples import LeftOut, Samples
from collage.check.store import ValueStore
from collage.frontend.model import import_model
from collage.frontend.random_inputs import random_inputs
from collage.frontend.session import PartSession
from collage.frontend.subgraph import Subgraph
from collage.measure_db.results import Measurement
from tests.compile.measure_db.test_gate import (
    Planted,
    maximum,
    measured,
    product,
    right,
    without_infinity,
    without_nan,
)


def test_what_cannot_be_tried_on_nan_is_guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regions with loops, or with weights of more than 1 GiB, have no changed inputs."""
    monkeypatch.setattr(samples, "_LARGEST_BYTES", 0)
    for keeps in (True, False):
        monkeypatch.setattr(Planted, "keeps_nan", keeps)
        outcome = measured(product(), right, tmp_path)
        assert isinstance(outcome, Measurement) and outcome.finite_only == (not keeps)


def test_what_onnx_runtime_does_not_answer_is_guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = PartSession.run

    def refusing(session: PartSession, feeds: Mapping[str, Any], limit_s: float = 60.0) -> list[Any]:
        if not all(np.isfinite(each).all() for each in feeds.values()):
            raise RuntimeError("no such numbers")
        return run(session, feeds, limit_s)

    monkeypatch.setattr(PartSession, "run", refusing)
    for keeps in (True, False):
        monkeypatch.setattr(Planted, "keeps_nan", keeps)
        outcome = measured(product(), right, tmp_path)
        assert isinstance(outcome, Measurement) and outcome.finite_only == (not keeps)


@pytest.mark.parametrize(
    ("kind", "keeps", "trusted"),
    [
        (BackendKind.ENGINE, True, True),
        (BackendKind.COMPILER, True, False),
        (BackendKind.LIBRARY, False, False),
    ],
)
def test_kinds_of_inputs_for_which_there_was_no_time_do_not_count_as_passed(
    kind: BackendKind, keeps: bool, trusted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first kind of inputs, NaN, is tried, and no other one."""
    run = PartSession.run

    def slow(session: PartSession, feeds: Mapping[str, Any], limit_s: float = 60.0) -> list[Any]:
        time.sleep(0.1)
        return run(session, feeds, limit_s)

    monkeypatch.setattr(PartSession, "run", slow)
    monkeypatch.setattr(samples, "_BUDGET_S", 0.05)
    monkeypatch.setattr(Planted, "keeps_nan", keeps)
    monkeypatch.setattr(Planted, "kind", kind)
    outcome = measured(maximum(), without_infinity, tmp_path)
    assert isinstance(outcome, Measurement) and outcome.finite_only == (not trusted)
    outcome = measured(maximum(), without_nan, tmp_path)
    assert isinstance(outcome, Measurement) and outcome.finite_only


def test_what_onnx_runtime_did_not_survive_does_not_count_as_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = import_model(maximum())
    store = ValueStore(tmp_path)
    evaluate(model, random_inputs(model, np.random.default_rng(0)), store)
    region, fatal = Subgraph(model, (0,)), KINDS[0]
    with suppress(KeyboardInterrupt), Samples(store)._noted(region, fatal):
        monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)  # the process ends
        raise KeyboardInterrupt
    monkeypatch.undo()
    tried = Samples(store)
    assert fatal.name not in [each.kind for each in tried.changed(region)]
    assert tried.left_out(region) == LeftOut(late=(fatal.name,))
