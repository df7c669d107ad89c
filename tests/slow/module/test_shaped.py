"""One file for several sets of shapes: which placement a call runs on, and what becomes of other shapes."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import collage
from collage.core.progress import Progress
from collage.errors import InputError
from collage.graph.value_type import SEQUENCE, STRING, TENSOR, ValueType
from collage.runtime.original import Fallback
from collage.schedule.suffix import ValuePort
from tests.helpers.cli.helpers import fails, json_of, succeeds
from tests.helpers.models import make_model

ROOT = Path(__file__).resolve().parents[3]
RNG = np.random.default_rng(0)
BACKENDS = ["onednn", "onnxruntime", "tvm"]
WEIGHT = RNG.standard_normal((16, 16)).astype(np.float32)


def network() -> onnx.ModelProto:
    """softmax(a w) + b, for any number of rows."""
    nodes = [
        helper.make_node("MatMul", ["a", "w"], ["m"]),
        helper.make_node("Softmax", ["m"], ["s"]),
        helper.make_node("Add", ["s", "b"], ["y"]),
    ]
    return make_model(nodes, {"a": ["n", 16], "b": ["n", 16]}, {"y": ["n", 16]}, {"w": WEIGHT})


def arrays(rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal((rows, 16)).astype(np.float32) for name in "ab"}


def expected(inputs: dict[str, np.ndarray]) -> np.ndarray:
    session = ort.InferenceSession(network().SerializeToString(), providers=["CPUExecutionProvider"])
    found: np.ndarray = session.run(None, inputs)[0]
    return found


def shapes(rows: int) -> dict[str, tuple[int, int]]:
    return {"a": (rows, 16), "b": (rows, 16)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shaped")


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    path = folder / "rows.onnx"
    onnx.save_model(network(), str(path))
    return path


@pytest.fixture(scope="module")
def file(folder: Path, model: Path) -> Path:
    """For 4 and for 8 rows, from the command line. Both modules are placements."""
    path = folder / "rows.collage"
    flags = [flag for rows in (4, 8) for name in "ab" for flag in ("--shape", f"{name}:{rows}x16")]
    flags += ["--db", str(folder / "db.sqlite"), "--backends", "onednn,tvm"]
    text = succeeds("compile", model, "-o", path, "--quiet", *flags)
    assert "shapes a:4x16 b:4x16" in text
    assert "shapes a:8x16 b:8x16" in text
    assert "other shapes run on ONNX Runtime" in text
    return path


def loaded(file: Path, **options: bool) -> collage.ShapedModule:
    found = collage.load(file, **options)
    assert isinstance(found, collage.ShapedModule)
    return found


def test_a_call_runs_the_placement_for_its_shapes(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    module = loaded(file)
    assert [each.program.inputs[0].type.shape for each in module.modules] == [(4, 16), (8, 16)]
    with caplog.at_level(logging.WARNING, logger="collage"):
        for seed in range(4):
            for rows in (8, 4):
                inputs = arrays(rows, seed)
                for found in (module(**inputs), module(inputs["a"], inputs["b"]), module.run(inputs)["y"]):
                    np.testing.assert_allclose(found, expected(inputs), atol=1e-5)
                exact = module.for_shapes(shapes(rows))
                np.testing.assert_array_equal(module(inputs), exact(inputs))
    assert caplog.records == []
    assert module.inputs["a"].count(" or ") == 1


def test_other_shapes_run_on_onnx_runtime_with_one_warning(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    module = loaded(file)
    clone = module.clone()
    with caplog.at_level(logging.WARNING, logger="collage"):
        for rows in (3, 5, 3):
            inputs = arrays(rows)
            np.testing.assert_allclose(module(**inputs), expected(inputs), atol=1e-6)
            np.testing.assert_allclose(clone.run(inputs)["y"], expected(inputs), atol=1e-6)
    (record,) = caplog.records
    text = record.getMessage()
    for words in ("rows", "a:3x16 b:3x16", "a:4x16 b:4x16; a:8x16 b:8x16", "--shape"):
        assert words in text


class Exported:
    """An array of a library whose arrays tell their shapes by DLPack only."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **options: object) -> object:
        return self._array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


def test_arrays_of_other_libraries_have_the_shapes_that_they_are_converted_to(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module = loaded(file)
    given = arrays(8)
    exported = {name: Exported(array) for name, array in given.items()}
    with caplog.at_level(logging.WARNING, logger="collage"):
        np.testing.assert_allclose(module(**exported), expected(given), atol=1e-5)
    assert caplog.records == []
    assert module.trace(exported)
    with pytest.raises(InputError, match="missing input: b"):
        module.trace({"a": given["a"]})


def test_strict_makes_them_errors(file: Path) -> None:
    module = loaded(file, strict=True)
    np.testing.assert_allclose(module(**arrays(4)), expected(arrays(4)), atol=1e-5)
    with pytest.raises(InputError, match=r"not compiled for a:3x16 b:3x16, but for a:4x16 b:4x16; a:8x16"):
        module(**arrays(3))


def test_wrong_inputs(file: Path) -> None:
    module = loaded(file)
    good = arrays(3)
    for inputs, words in (
        ({"a": good["a"]}, "missing input: b"),
        ({**good, "c": good["a"]}, "unknown input: c"),
        ({**good, "b": good["b"].astype(np.float64)}, "b has dtype float64"),
        ({**good, "b": good["b"][:2]}, "does not run on inputs of shapes"),
        ({**good, "b": good["b"][:, :7]}, "does not run on inputs of shapes"),
        ({"a": arrays(4)["a"].astype(np.float64), "b": arrays(4)["b"]}, "a has dtype float64"),
    ):
        with pytest.raises(InputError, match=words):
            module.run(inputs)
    with pytest.raises(InputError, match="input a is no array: "):
        module.run({**good, "a": [[1.0], [1.0, 2.0]]})
    with pytest.raises(InputError, match="not compiled for"):
        module.for_shapes(shapes(5))


def test_the_fallback_takes_texts_and_sequences() -> None:
    texts = ValueType(TENSOR, STRING, (2,))
    several = ValueType(SEQUENCE, "float32", None)
    nodes = [
        helper.make_node("Identity", ["s"], ["t"]),
        helper.make_node("SequenceLength", ["q"], ["n"]),
    ]
    info = [
        helper.make_tensor_value_info("s", TensorProto.STRING, ["k"]),
        helper.make_tensor_sequence_value_info("q", TensorProto.FLOAT, None),
    ]
    made = [
        helper.make_tensor_value_info("t", TensorProto.STRING, ["k"]),
        helper.make_tensor_value_info("n", TensorProto.INT64, []),
    ]
    graph = helper.make_graph(nodes, "texts", info, made)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    ports = [ValuePort("s", texts), ValuePort("q", several)]
    outputs = [ValuePort("t", texts), ValuePort("n", ValueType(TENSOR, "int64", ()))]
    fallback = Fallback(proto.SerializeToString(), ports, outputs, 1)
    found = fallback.run({"s": ["a", "b", "c"], "q": [np.zeros(2, np.float32), np.ones(1, np.float32)]})
    assert found["t"].tolist() == ["a", "b", "c"] and found["n"] == 2


def test_the_fallback_after_a_fork(file: Path) -> None:
    """Loaded in the child it runs; loaded before, it says so."""
    program = """
import os, sys
import numpy as np
import collage
module = collage.load(sys.argv[1])
x = np.zeros((3, 16), np.float32)
for before in (False, True):
    if before:
        module(x, x)
    child = os.fork()
    if not child:
        try:
            module(x, x)
            os._exit(10)
        except collage.CollageError as error:
            os._exit(20 if "forked" in str(error) else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    command = [sys.executable, "-W", "ignore", "-c", program, str(file)]
    done = subprocess.run(command, cwd=ROOT, timeout=120, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["10", "20"]


def test_show(file: Path, tmp_path: Path) -> None:
    text = succeeds("show", file)
    for words in ("shapes a:4x16 b:4x16", "shapes a:8x16 b:8x16", "other shapes run on ONNX Runtime"):
        assert words in text
    found = json_of("show", file, "--json")
    assert [each["inputs"]["a"] for each in found["shapes"]] == [[4, 16], [8, 16]]
    assert found["regions"] == found["shapes"][0]["regions"]
    assert found["fallback"] == "onnxruntime"
    one = json_of("show", file, "--json", "--shape", "b:8x16")
    assert [each["inputs"] for each in one["shapes"]] == [{"a": [8, 16], "b": [8, 16]}]
    page = tmp_path / "page.html"
    succeeds("show", file, "--html", page)
    data = json.loads(page.read_text().partition('id="data">')[2].partition("</script>")[0])
    assert [each["title"] for each in data["modules"]] == ["a:4x16 b:4x16", "a:8x16 b:8x16"]
    assert succeeds("show", file, "--explain").count("shapes a:") == 2
    fails(2, "show", file, "--shape", "a:7x16", words=("a:4x16 b:4x16; a:8x16 b:8x16",))


def test_after_ctrl_c_the_other_shapes_get_their_first_modules(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    def interrupt(progress: Progress) -> None:
        if progress.stage == "measure" and progress.best and not seen:
            seen.append(progress.text)
            raise KeyboardInterrupt

    found = collage.compile_shapes(
        model, [shapes(4), shapes(8)], db=tmp_path / "db.sqlite", progress=interrupt, backends=BACKENDS
    )
    assert [each.report.ended for each in found.modules] == ["interrupt", "interrupt"]
    assert [each.report.budget_s for each in found.modules] == [None, None]
    assert "budget" not in caplog.text
    for rows in (4, 8):
        inputs = arrays(rows)
        np.testing.assert_allclose(found(**inputs), expected(inputs), atol=1e-5)


def test_the_shapes_share_a_budget(model: Path, tmp_path: Path) -> None:
    found = collage.compile_shapes(
        model,
        [shapes(4), shapes(8)],
        db=tmp_path / "db.sqlite",
        progress=False,
        backends=BACKENDS,
        budget_s=0.01,
    )
    assert [each.report.ended for each in found.modules] == ["budget", "budget"]
    assert [each.report.budget_s for each in found.modules] == [0.01, 0.01]
    for rows in (4, 8):
        inputs = arrays(rows)
        np.testing.assert_allclose(found(**inputs), expected(inputs), atol=1e-5)
