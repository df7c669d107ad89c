"""``collage windtunnel fit`` from a joblib file and a parquet file to a model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from collage.cli.main import main

pytest.importorskip("torch")
joblib = pytest.importorskip("joblib")
pandas = pytest.importorskip("pandas")

import onnxruntime  # noqa: E402
from sklearn.compose import make_column_transformer  # noqa: E402
from sklearn.ensemble import GradientBoostingClassifier  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder  # noqa: E402

from collage import windtunnel  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("fit")
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({"age": rng.normal(40, 10, 900), "city": rng.choice(["oslo", "rome"], 900)})
    frame["late"] = (frame.age + 9 * (frame.city == "rome") + rng.normal(0, 8, 900) > 45).astype(int)
    frame.to_parquet(found / "train.parquet")
    columns = make_column_transformer((OneHotEncoder(), ["city"]), remainder="passthrough")
    pipeline = make_pipeline(columns, GradientBoostingClassifier(n_estimators=5, max_depth=3))
    joblib.dump(pipeline.fit(frame[["age", "city"]], frame.late), found / "pipeline.joblib")
    return found


def fit(folder: Path, *more: str) -> tuple[int, str]:
    data = ("--data", str(folder / "train.parquet"), "--target", "late", "--epochs", "2", "--batch", "128")
    done = CliRunner().invoke(main, ["windtunnel", "fit", str(folder / "pipeline.joblib"), *data, *more])
    return done.exit_code, done.output


@pytest.mark.parametrize("level", ["L1", "L3"])
def test_fit(folder: Path, level: str) -> None:
    outputs = []
    for name in ("out.onnx", "out.tunnel"):
        status, text = fit(folder, "--trust", "--level", level, "-o", str(folder / name), "--json", "-q")
        assert status == 0, text
        found = json.loads(text[text.index("{") :])  # behind warnings
        assert 0.5 < found["source_score"] <= 1
        assert found["epochs"] == 2 and 0.5 < found["score_before"] <= 1 and found["score"] >= found["score_before"]
        outputs.append(found["score"])
    assert outputs[0] == outputs[1]
    frame = pandas.read_parquet(folder / "train.parquet")[["age", "city"]]
    wanted = windtunnel.load(folder / "out.tunnel").predict_proba(frame)
    session = onnxruntime.InferenceSession(folder / "out.onnx")
    numpy_types = {"tensor(string)": object, "tensor(float)": np.float32, "tensor(double)": np.float64}
    kinds = {each.name: numpy_types[each.type] for each in session.get_inputs()}
    feeds = {name: frame[[name]].to_numpy().astype(kind) for name, kind in kinds.items()}
    np.testing.assert_allclose(session.run(None, feeds)[-1], wanted, atol=1e-4)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("-o", "out.onnx"), "--trust runs it"),
        (("--trust", "-o", "out.txt"), "written as .onnx or .tunnel"),
        (("--trust", "-o", "out.onnx", "--validation", "none.parquet"), "none.parquet is none"),
        (("--trust", "-o", "out.onnx", "--target", "early"), "early"),
        (("--trust", "-o", "out.onnx", "--data", "none.parquet"), "none.parquet"),
    ],
)
def test_what_is_wrong(folder: Path, more: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    status, text = fit(folder, *more)
    assert status in (1, 2) and words in text and "Traceback" not in text
    assert not Path("out.txt").exists()


def test_operators_in_front_are_refused_before_training(folder: Path, tmp_path: Path) -> None:
    frame = pandas.read_parquet(folder / "train.parquet")
    front = make_pipeline(FunctionTransformer(np.log1p), LogisticRegression()).fit(frame[["age"]], frame.late)
    joblib.dump(front, tmp_path / "pipeline.joblib")
    frame[["age", "late"]].to_parquet(tmp_path / "train.parquet")
    status, text = fit(tmp_path, "--trust", "-o", str(tmp_path / "out.onnx"))
    assert status == 2 and "write OUT.tunnel" in text and "epoch" not in text
    status, text = fit(
        tmp_path, "--trust", "-o", str(tmp_path / "out.tunnel"), "--data", str(tmp_path / "none.parquet")
    )
    assert status in (1, 2) and "none.parquet" in text
    frame.assign(late=np.where(np.arange(len(frame)) % 9 == 5, None, frame.late)).to_parquet(tmp_path / "train.parquet")
    status, text = fit(tmp_path, "--trust", "-o", str(tmp_path / "out.tunnel"))
    assert status in (1, 2) and "without a value to predict" in text
