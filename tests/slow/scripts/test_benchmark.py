"""`scripts/bench cpu`: its options and files, and tiny networks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from collage.errors import UsageError
from scripts.lib.bench import cpu
from scripts.lib.bench.compare import is_engine
from scripts.lib.bench.main import main
from tests.helpers.models import elementwise_net

SCRIPT = Path(__file__).parents[3] / "scripts" / "bench"


def script(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "cpu", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_script(tmp_path: Path) -> None:
    path, file = tmp_path / "net.onnx", tmp_path / "found.json"
    onnx.save_model(elementwise_net(), str(path))
    options = ("--contenders", "onnxruntime", "--rounds", "1", "--restarts", "2", "--json", file)
    done = script(path, tmp_path / "missing.onnx", *options)
    assert done.returncode == 1 and "missing.onnx" in done.stderr, done.stderr
    found = json.loads(file.read_text())
    assert found["rounds"] == 1 and list(found["failed"]) == [str(tmp_path / "missing.onnx")]
    assert all(found[key] for key in ("date", "commit", "machine"))
    assert "scripts/bench cpu" in found["command"]
    (model,) = found["models"]
    assert model["model"] == str(path) and sum(model["mix"].values()) > 0
    assert model["engines"].keys() == {"onnxruntime", "collage"} and len(model["best_so_far"]) > 0
    assert model["again"]["measurements_made"] == 0 and len(model["ratios"]["onnxruntime"]["restarts"]) == 2
    assert np.isclose(found["geometric_mean"]["best"], model["speedup_vs_best_engine"], atol=1e-3)

    (before := tmp_path / "before").mkdir()
    other, module = tmp_path / "other.onnx", before / "other.collage"
    onnx.save_model(elementwise_net(), str(other))
    command = [sys.executable, "-m", "collage", "compile", str(other), "-o", str(module), "--quick"]
    subprocess.run([*command, "--db", str(tmp_path / "db.sqlite")], check=True, capture_output=True)
    done = script(path, other, *options, "--resume", "--before", before)
    assert done.returncode == 0 and "other.onnx" in done.stderr and "net.onnx" not in done.stderr
    first, second = json.loads(file.read_text())["models"]
    assert first == model and second["ratios"].keys() == {"onnxruntime", "before"}


def test_help_names_each_option() -> None:
    shown = CliRunner().invoke(main, ["cpu", "--help"])
    assert shown.exit_code == 0
    for option in "--real --only --budget --restarts --before --beside-busy --json --resume --quick".split():
        assert option in shown.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--real", "dcgan"], "takes no MODEL"),
        (["--only", "dcgan"], "--only"),
        (["--resume"], "FILE"),
        (["--real", "--only", "nothing"], "nothing"),
    ],
)
def test_options_that_do_not_fit(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(main, ["cpu", "--contenders", "onnxruntime", *arguments])
    assert result.exit_code == 2 and words in result.output


def test_a_stopped_run_goes_on_only_with_the_same_options(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    about = {"date": "today", "budget_s": 60.0}
    assert cpu._earlier(file, about) == []
    file.write_text(json.dumps({"date": "then", "budget_s": 60.0, "models": [{"model": "dcgan"}]}))
    assert cpu._earlier(file, about) == [{"model": "dcgan"}]
    with pytest.raises(UsageError, match="budget_s"):
        cpu._earlier(file, {**about, "budget_s": 10.0})


def test_labels_of_engines() -> None:
    labels = ("openvino, as written", "onnxruntime", "openvino (2 streams)", "collage", "mix 2", "openvinos")
    assert [is_engine(each) for each in labels] == [True, True, True, False, False, False]
