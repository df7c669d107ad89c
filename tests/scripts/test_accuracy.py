"""`scripts/bench accuracy` and `precision` on networks with real inputs; small networks stand for real ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import helper, numpy_helper

from collage.bench.compiled import Options
from collage.core.progress import Progress
from collage.errors import CollageError
from scripts.lib.bench.main import main
from scripts.lib.realmodels.cases import Kind, kind_of
from scripts.lib.realmodels.drawn import DRAWS, SAMPLES, TASK, drawn, spread
from scripts.lib.realmodels.files import ModelFile
from scripts.lib.realmodels.reading import characters, read
from scripts.lib.realmodels.speech import speech_and_noise
from scripts.lib.studies import tables
from scripts.lib.studies.accuracy import Asked, accuracy
from scripts.lib.studies.one_by_one import PROBLEM, one_by_one
from tests.models import make_model
from tests.scripts.test_real_models import detector, which_way_up


def reader() -> onnx.ModelProto:
    """Scores of 5 classes at each of 80 places of a line, with the interface of the real recogniser."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((8, 3, 48, 4)).astype(np.float32) * 0.1,
        "d": rng.standard_normal((8, 5)).astype(np.float32),
        "axes": np.array([2]),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], strides=[48, 4]),
        helper.make_node("Squeeze", ["c", "axes"], ["s"]),
        helper.make_node("Transpose", ["s"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["t", "d"], ["m"]),
        helper.make_node("Softmax", ["m"], ["y"], axis=-1),
    ]
    model = make_model(nodes, {"x": ["n", 3, 48, "w_"]}, {"y": ["n", "l", 5]}, weights, opset=13)
    prop = model.metadata_props.add()
    prop.key, prop.value = "character", "a\nb\nc"
    return model


def silent(_: Progress) -> None:
    """Show nothing."""


@pytest.mark.parametrize("make", [reader, detector])
def test_a_task_is_run_and_its_decisions_are_compared(
    make: Callable[[], onnx.ModelProto], tmp_path: Path
) -> None:
    file = ModelFile("package/small", make().SerializeToString())
    asked = Asked(1e-2, lines=6, seconds=1.0, quick=True, budget_s=60.0)
    found = accuracy(file, silent, asked=asked, options=Options(2, 0, str(tmp_path / "db.sqlite")))
    assert found["decisions"] == (31 if make is detector else 6)
    assert found["different"] == 0
    assert found["task"] == kind_of(make()).value
    assert tables.decisions(found) == [f"package/small: 0 of {found['decisions']} decisions differ"]


def test_decisions_that_differ_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference whose last weights are negative decides for the other class each time."""
    other = which_way_up()
    weights = next(each for each in other.graph.initializer if each.name == "d")
    weights.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(weights), "d"))
    from scripts.lib.studies import accuracy as study

    monkeypatch.setattr(study, "Reference", lambda _, made=study.Reference: made(other))
    file = ModelFile("package/small", which_way_up().SerializeToString())
    asked = Asked(1e-2, lines=6, quick=True, budget_s=60.0)
    found = study.accuracy(file, silent, asked=asked, options=Options(2, 0, str(tmp_path / "db.sqlite")))
    assert (found["decisions"], found["different"], len(tables.decisions(found))) == (6, 6, 4)


def test_a_line_is_read_without_blanks_and_repetitions() -> None:
    classes = [0, 1, 1, 0, 1, 2, 4, 3]
    assert characters(reader()) == ["", "a", "b", "c", " "]
    assert read(np.eye(5, dtype=np.float32)[classes], characters(reader())) == "aab c"
    assert read(np.eye(5, dtype=np.float32)[[4, 3]], []) == "[4][3]"


@pytest.mark.parametrize("make", [reader, which_way_up, detector])
def test_samples_other_inputs_and_tasks_have_nothing_in_common(make: Callable[[], onnx.ModelProto]) -> None:
    model = make()
    seen: set[bytes] = set()
    for seed in (SAMPLES, DRAWS, TASK):
        case, inputs = spread(model, 3, seed)
        assert len(inputs) == 3
        (name, shape) = next(iter(case.shapes.items()))
        for each in inputs:
            assert each[name].shape == tuple(shape)
            seen.add(each[name].tobytes())
    assert len(seen) == 9


def test_a_state_is_carried_on() -> None:
    _, inputs = spread(detector(), 3, DRAWS)
    assert all(np.any(each["state"]) for each in inputs)
    assert kind_of(detector()) is Kind.HEARS
    assert not np.any(drawn(detector(), 2, DRAWS).runs[1]["state"])


def test_synthetic_speech_is_as_long_as_it_should_be_and_not_silent() -> None:
    sound = speech_and_noise(16000, 5.0, 0)
    assert sound.shape == (80_000,)
    assert np.isfinite(sound).all()
    assert 0.1 < np.abs(sound).max() <= 1.5
    assert not np.array_equal(sound, speech_and_noise(16000, 5.0, 1))


def test_a_model_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    def study(item: int, show: Callable[[Progress], None]) -> dict[str, Any]:
        if item == 1:
            raise CollageError("it has no outputs")
        if item == 2:
            raise MemoryError
        return {"model": str(item), "value": item}

    def told(result: Mapping[str, Any]) -> list[str]:
        return [f"value {result['value']}"]

    file = tmp_path / "results.jsonl"
    status, found = one_by_one({str(n): n for n in range(4)}, study, told, file)
    assert status == 1
    assert [each.get("value") for each in found] == [0, None, None, 3]
    assert found[1][PROBLEM] == "CollageError: it has no outputs"
    assert [json.loads(line) for line in file.read_text().splitlines()] == found


def test_precision_gives_real_networks_real_inputs(tmp_path: Path) -> None:
    onnx.save(which_way_up(), tmp_path / "small.onnx")
    (tmp_path / "wrong.onnx").write_bytes(make_model([], {"z": [1]}, {"z": [1]}, {}).SerializeToString())
    arguments = ["precision", "--real", str(tmp_path), "--no-float32", "--draws", "2", "--rounds", "2"]
    arguments += ["--budget", "30", "--db", str(tmp_path / "db.sqlite"), "--json"]
    arguments += ["--results", str(tmp_path / "results.jsonl")]
    ran = CliRunner().invoke(main, arguments)
    assert ran.exit_code == 0, ran.output
    (result,) = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert result["real"] and len(result["draws"]) == 2
    assert result["speedup"]["float32_over_ours"] is None
    assert max(result["draws"]) < 0.5
    assert "onnxruntime" in result["points"]
