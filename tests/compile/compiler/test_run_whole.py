"""The engines on the whole model, with made-up trials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from collage.compiler import engine_trials
from collage.compiler.events import Measured, Noted, TriedEngine
from collage.compiler.passes.check_indices import CheckIndices
from collage.compiler.passes.dynamic_suffix import DynamicSuffix
from collage.compiler.passes.run_whole import RunWhole
from collage.compiler.state import run
from collage.errors import ModelError
from collage.measure.whole_trial import EngineTrial
from collage.measure_db.database import Database
from collage.measure_db.results import Timing
from tests.helpers.compiler.null import Made, NullBackend, NullEngine, chain

REASON = "TVM cannot import Pow."


def timing(us: float) -> Timing:
    return Timing(us, 1.0, us, us, 20)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    engines = NullEngine("slow"), NullEngine("fast"), NullBackend("lib")
    with Database(tmp_path / "db.sqlite") as database:
        yield Made({}, *engines, database=database)


@pytest.fixture
def trial(made: Made, monkeypatch: pytest.MonkeyPatch) -> list[EngineTrial]:
    """The trials of the engines, which the test fills in. Each is used once."""
    trials: list[EngineTrial] = []

    class Measurer:
        def __init__(self, model: object, inputs: object, engines: Mapping[str, Any], *rest: object) -> None:
            assert sorted(engines) == ["fast", "slow"]

        def __enter__(self) -> Measurer:
            return self

        def __exit__(self, *about: object) -> None: ...

        def trial(self) -> EngineTrial:
            return trials.pop(0)

    monkeypatch.setattr(engine_trials, "WholeMeasurer", Measurer)
    return trials


def test_the_fastest_engine_that_is_right_is_selected_and_remembered(
    made: Made, trial: list[EngineTrial]
) -> None:
    errors = {"slow": (0.1, 0.2), "fast": (0.3, 0.4)}
    trial.append(EngineTrial({"slow": timing(9.0), "fast": timing(4.0)}, errors, notes=("by the judge",)))
    for measurements in (2, 0):
        found = RunWhole(REASON, chain())(made.context, made.start)
        assert (found.result.label, found.result.measured_us, found.result.relative_error) == (
            "fast",
            4.0,
            0.4,
        )
        assert found.model is None and found.on_engine is made.start.source.original
        assert [e.count for e in found.log if isinstance(e, Measured)] == [measurements]
        assert [e.text for e in found.log if isinstance(e, Noted)] == [
            f"fast runs the model whole: {REASON}",
            "by the judge",
        ]
    tried = {e.engine: e.timing for e in found.log if isinstance(e, TriedEngine)}
    assert tried == {"slow": timing(9.0), "fast": timing(4.0)}


def test_where_no_engine_runs_it_each_says_why(made: Made, trial: list[EngineTrial]) -> None:
    for reason in (REASON, REASON.rstrip(".")):
        trial.append(EngineTrial(refused={"slow": "no Relu", "fast": "no Tanh"}))
        with pytest.raises(
            ModelError, match=r"TVM cannot import Pow\. And no engine.*slow: no Relu; fast: no Tanh"
        ):
            RunWhole(reason, made.start.source.original)(made.context, made.start)


def test_what_no_engine_takes_runs_as_its_author_wrote_it(made: Made, trial: list[EngineTrial]) -> None:
    written = chain()
    written.producer_name = "its author"
    trial += [EngineTrial(refused={"slow": "no", "fast": "no"}), EngineTrial({"slow": timing(7.0)})]
    found = RunWhole(REASON, written)(made.context, made.start)
    assert found.result.label == "slow"
    assert found.on_engine is not None and found.on_engine.producer_name == "its author"
    assert any("as its author wrote it" in e.text for e in found.log if isinstance(e, Noted))


def test_the_suffix_is_for_shapes_that_depend_on_data(made: Made, trial: list[EngineTrial]) -> None:
    trial.append(EngineTrial({"slow": timing(9.0)}))
    problem = ModelError(REASON)
    passes = RunWhole(REASON, chain()), DynamicSuffix(problem), CheckIndices()
    found = run(passes, made.context, made.start)
    assert found.result.label == "slow"
    suffix = found.result.parts.program.suffix
    assert suffix is not None and [port.rows for port in suffix.inputs] == [None]
