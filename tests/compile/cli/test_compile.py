"""``collage compile``: every bad input gives one line and the right status, and leaves nothing behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from collage import api, onnx_backend
from collage.errors import InputError, UsageError
from tests.helpers.cli.helpers import collage, fails, json_of, succeeds
from tests.helpers.models import conv_net, elementwise_net, make_model

CONTRACT = {
    "model",
    "target",
    "threads",
    "predicted_us",
    "measured_us",
    "max_abs_error",
    "measurements_made",
    "search_s",
    "regions",
}
REGION = {"backend", "ops", "nodes", "layout", "threads", "stream", "cost_us"}


def test_json_is_the_contract_and_a_second_compile_measures_nothing(
    module: Path, network: Path, database: Path, tmp_path: Path
) -> None:
    found = json_of("compile", network, "-o", tmp_path / "out.collage", "--db", database, "--json")
    assert found.keys() >= CONTRACT
    assert found["measurements_made"] == 0
    assert "races" not in found["spent_s"]
    assert found["model"] == "net"
    for region in found["regions"]:
        assert region.keys() >= REGION
    shown = json_of("show", tmp_path / "out.collage", "--json")
    assert {**shown, "output": found["output"]} == found


def test_threads_and_backends_are_obeyed(network: Path, database: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.collage"
    options = ["--threads", "1", "--backends", "onnxruntime", "--db", str(database), "--json"]
    ran = collage("compile", network, "-o", out, *options, "--verbose")
    assert "  engines: " in ran.stderr
    found = json.loads(ran.stdout)
    assert found["threads"] == 1
    assert found["measurements_made"] == 0 or found["spent_s"]["races"] > 0
    assert {region["backend"] for region in found["regions"]} == {"onnxruntime"}


def write(path: Path, content: bytes | onnx.ModelProto) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.SerializeToString())
    return path


def with_opset(version: int) -> onnx.ModelProto:
    model = elementwise_net()
    model.opset_import[0].version = version
    return model


def with_unknown_operator() -> onnx.ModelProto:
    return make_model([helper.make_node("NoSuchOp", ["x"], ["y"])], {"x": [2]}, {"y": [2]})


BAD_MODELS: dict[str, tuple[Callable[[], bytes | onnx.ModelProto], str]] = {
    "empty": (lambda: b"", "is empty"),
    "text": (lambda: b"this is no model\n" * 20, "no ONNX"),
    "truncated": (lambda: conv_net().SerializeToString()[:900], "cut short"),
    "opset": (lambda: with_opset(999), "opset 999"),
    "operator": (with_unknown_operator, "NoSuchOp"),
}


@pytest.mark.parametrize("kind", BAD_MODELS)
def test_bad_model(kind: str, tmp_path: Path) -> None:
    make, word = BAD_MODELS[kind]
    path, out = write(tmp_path / "bad.onnx", make()), tmp_path / "out.collage"
    fails(1, "compile", path, "-o", out, "--db", tmp_path / "db", words=(word,))
    assert not list(tmp_path.glob("*out.collage*"))


def test_missing_model(tmp_path: Path) -> None:
    fails(1, "compile", tmp_path / "no.onnx", "-o", tmp_path / "out.collage", words=("no.onnx", "no such file"))
    assert not list(tmp_path.iterdir())


@pytest.fixture
def symbolic(tmp_path: Path) -> Path:
    nodes = [helper.make_node("Add", ["a:0", "b"], ["c"])]
    model = make_model(nodes, {"a:0": ["batch", 8], "b": ["batch", 8]}, {"c": ["batch", 8]})
    return write(tmp_path / "symbolic.onnx", model)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (["x"], ("'x'", "INPUT:1x3x224x224")),
        (["x:axb"], ("INPUT:1x3x224x224",)),
        (["x:-1x3"], ("INPUT:1x3x224x224",)),
        (["nope:1", "nada:2"], ("nada, nope", "Valid: x")),
        (["x:4x64", "x:4x64"], ("two sets", "the same", "x:4x64")),
        (["x:4x64x1"], ("x has 2 dimensions",)),
        (["x:5x64"], ("does not fit its fixed dimensions", "export the model again")),
    ],
)
def test_bad_shape(shapes: list[str], words: tuple[str, ...], network: Path, tmp_path: Path) -> None:
    flags = [argument for shape in shapes for argument in ("--shape", shape)]
    fails(2, "compile", network, "-o", tmp_path / "out.collage", *flags, words=words)


def test_unknown_backends_are_named_at_once(network: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.collage"
    words = ("nonsense, rubbish", "openvino", "onnxruntime", "tvm")
    fails(2, "compile", network, "-o", out, "--backends", "rubbish,tvm,nonsense", words=words)


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--threads", "0"], "--threads"),
        (["--threads", "two"], "--threads"),
        (["--time-limit", "0"], "--time-limit"),
        (["--time-limit", "inf"], "--time-limit"),
        (["--budget", "0"], "--budget"),
        (["--budget", "nan"], "--budget"),
        (["--tune-trials", "-1"], "--tune-trials"),
        (["--backends", ","], "--backends"),
        (["--colour"], "--colour"),
    ],
)
def test_bad_option(flags: list[str], word: str, network: Path, tmp_path: Path) -> None:
    fails(2, "compile", network, "-o", tmp_path / "out.collage", *flags, words=(word, "collage compile --help"))


def test_a_quick_compile_does_not_tune(network: Path, tmp_path: Path) -> None:
    flags = ["--quick", "--tune-trials", "8", "--db", tmp_path / "db.sqlite", "-q"]
    fails(2, "compile", network, "-o", tmp_path / "out.collage", *flags, words=("--quick", "--tune-trials"))
    assert not list(tmp_path.glob("*.sqlite"))
    with pytest.raises(UsageError, match="leave out either quick or tune_trials"):
        api.compile(network, quick=True, tune_trials=8, db=tmp_path / "db.sqlite")


def test_output_that_cannot_be_written_is_found_before_the_work(network: Path, tmp_path: Path) -> None:
    fails(1, "compile", network, "-o", tmp_path / "no" / "out.collage", words=("no folder",))
    fails(1, "compile", network, "-o", tmp_path, words=("is a directory",))
    (tmp_path / "file").touch()
    fails(1, "compile", network, "-o", tmp_path / "file" / "out.collage", words=("cannot write",))


def test_output_must_not_replace_the_model(tmp_path: Path) -> None:
    path = write(tmp_path / "net.onnx", elementwise_net())
    before = path.read_bytes()
    fails(2, "compile", path, "-o", path, words=("--output would replace", "net.collage"))
    assert path.read_bytes() == before
    curve = write(tmp_path / "net-0.01.collage", elementwise_net())
    output = tmp_path / "net.collage"
    fails(2, "compile", curve, "-o", output, "--pareto", words=("--pareto would replace", str(curve)))
    picture = write(tmp_path / "net.pareto.svg", elementwise_net())
    fails(2, "compile", picture, "-o", output, "--pareto", words=("--pareto would replace", str(picture)))
    assert [each.read_bytes() for each in (path, curve, picture)] == [before] * 3


def test_output_does_not_replace_another_model(tmp_path: Path) -> None:
    path, other = (write(tmp_path / name, elementwise_net()) for name in ("net.onnx", "other.ONNX"))
    before = other.read_bytes()
    fails(2, "compile", path, "-o", other, words=("other.ONNX exists", "other.collage"))
    assert other.read_bytes() == before


def test_damaged_database(network: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.sqlite"
    damaged.write_bytes(b"no database " * 500)
    before = damaged.read_bytes()
    out = tmp_path / "out.collage"
    fails(1, "compile", network, "-o", out, "--db", damaged, words=("damaged.sqlite", "--db"))
    assert not out.exists()
    assert damaged.read_bytes() == before
    for path in (damaged, network):
        line = fails(1, "db", "stats", "--db", path, words=("is no database of measurements", "--db"))
        assert "damaged or" not in line and "Delete" not in line


def test_an_old_output_survives_a_failure(tmp_path: Path) -> None:
    out = tmp_path / "out.collage"
    out.write_bytes(b"precious")
    fails(1, "compile", tmp_path / "no.onnx", "-o", out, words=("no such file",))
    assert out.read_bytes() == b"precious"


def test_traceback_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLAGE_TRACEBACK", "1")
    result = collage("compile", tmp_path / "no.onnx", "-o", tmp_path / "out.collage")
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("collage: error: ")


def test_streams_and_folders_without_files_are_refused(network: Path, tmp_path: Path) -> None:
    fails(1, "compile", "-", "-o", tmp_path / "out.collage", words=("from a file, not from a stream",))
    fails(2, "compile", network, "-o", "-", words=("to a file, not to a stream",))
    line = fails(1, "compile", network, "-o", "/proc/out.collage", words=("no file can be made in /proc",))
    assert "there is no folder" not in line


def test_overridable_initializers_are_told_to_be_fixed(tmp_path: Path) -> None:
    rng = np.random.default_rng()
    weights = {name: rng.standard_normal(8).astype(np.float32) for name in ("scale", "shift")}
    nodes = [helper.make_node("Mul", ["x", "scale"], ["m"]), helper.make_node("Add", ["m", "shift"], ["y"])]
    model = make_model(nodes, {"x": [4, 8]}, {"y": [4, 8]}, weights)
    for name in weights:
        model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [8]))
    path, out, scale = tmp_path / "net.onnx", tmp_path / "out.collage", tmp_path / "scale.npy"
    onnx.save_model(model, str(path))
    np.save(scale, weights["scale"])
    options = ("-o", out, "--db", tmp_path / "db", "--backends", "onnxruntime", "--quiet")
    text = "fixed to their values in the file: scale, shift"
    assert text in " ".join(succeeds("compile", path, *options).split())
    for command in (("compile", path, *options, "--json"), ("show", out, "--json")):
        assert sum(text in note for note in json_of(*command)["notes"]) == 1
    words = ("scale: an overridable initializer of the model, which Collage fixes",)
    fails(2, "compile", path, *options, "--input", f"scale={scale}", words=words)
    fails(2, "compile", path, *options, "--shape", "scale:8", words=words)
    fails(2, "run", out, "--random", "--input", f"scale={scale}", words=words)
    module, x = api.load(out), rng.standard_normal((4, 8)).astype(np.float32)
    for call in (module, module.run):
        with pytest.raises(InputError, match=words[0]):
            call(x=x, scale=weights["scale"])
    for call in (module.bind, onnx_backend.prepare(path).run):
        with pytest.raises(InputError, match=words[0]):
            call({"x": x, "scale": weights["scale"]})
    np.testing.assert_allclose(module(x), x * weights["scale"] + weights["shift"], rtol=1e-5, atol=1e-6)
    model.ir_version = 3  # every initializer had to be an input then
    onnx.save_model(model, str(path))
    assert not any(text in note for note in json_of("compile", path, *options, "--json")["notes"])
