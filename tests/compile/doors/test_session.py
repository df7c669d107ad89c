"""Programs for ONNX Runtime, as its documentation writes them, with another session."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import collage
from collage import InferenceSession
from tests.helpers.models import conv_net, make_model
from tests.helpers.tables import rows, trees


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("session")
    onnx.save_model(conv_net(), str(folder / "model.onnx"))
    onnx.save_model(trees(), str(folder / "trees.onnx"))
    return folder


@pytest.fixture(scope="module")
def fast(folder: Path) -> dict[str, Any]:
    return {"db": folder / "db", "budget_s": 3.0, "quick": True, "threads": 1}


@pytest.fixture(scope="module")
def session(folder: Path, fast: dict[str, Any]) -> InferenceSession:
    return InferenceSession(folder / "model.onnx", **fast)


@pytest.fixture(scope="module")
def module_file(session: InferenceSession, folder: Path) -> Path:
    session.module.save(folder / "model.collage")
    return folder / "model.collage"


def image() -> np.ndarray:
    return np.random.default_rng().normal(size=(1, 3, 16, 16)).astype(np.float32)


def check(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    return onnxruntime.InferenceSession(folder / "model.onnx")


def test_load_and_run(module_file: Path, reference: Any) -> None:
    x = image()
    session = InferenceSession(str(module_file), providers=["CPUExecutionProvider"])
    outputs = session.run(None, {"x": x})
    check(outputs[0], reference.run(None, {"x": x})[0])
    input_name = session.get_inputs()[0].name
    label_name = session.get_outputs()[0].name
    check(session.run([label_name], {input_name: x})[0], outputs[0])


def test_loop_over_inputs_and_outputs(session: InferenceSession, reference: Any) -> None:
    feed = {}
    for each in session.get_inputs():
        assert each.type == "tensor(float)"
        feed[each.name] = np.random.default_rng().random(
            [d if isinstance(d, int) else 1 for d in each.shape], np.float32
        )
    for found, wanted in zip(
        session.run([o.name for o in session.get_outputs()], feed), reference.run(None, feed), strict=True
    ):
        check(found, wanted)


def test_descriptions_are_those_of_onnxruntime(folder: Path, fast: dict[str, Any]) -> None:
    for path in (folder / "model.onnx", folder / "trees.onnx"):
        ours, theirs = InferenceSession(path, **fast), onnxruntime.InferenceSession(path)
        for one, other in ((ours.get_inputs(), theirs.get_inputs()), (ours.get_outputs(), theirs.get_outputs())):
            assert [(e.name, e.type, e.shape) for e in one] == [(e.name, e.type, e.shape) for e in other]
        about, known = ours.get_modelmeta(), theirs.get_modelmeta()
        for name in (
            "producer_name",
            "graph_name",
            "domain",
            "description",
            "graph_description",
            "custom_metadata_map",
        ):
            assert getattr(about, name) == getattr(known, name)
    assert ours.get_providers() == ["CollageExecutionProvider", "CPUExecutionProvider"]
    assert ours.get_overridable_initializers() == []


def test_io_binding_with_numpy(session: InferenceSession, reference: Any) -> None:
    x_on_cpu = image()
    io_binding = session.io_binding()
    io_binding.bind_cpu_input("x", x_on_cpu)
    io_binding.bind_output("y")
    session.run_with_iobinding(io_binding)
    y = io_binding.copy_outputs_to_cpu()[0]
    check(y, reference.run(None, {"x": x_on_cpu})[0])
    x_on_cpu[...] = image()
    session.run_with_iobinding(io_binding)
    again = io_binding.copy_outputs_to_cpu()[0]
    check(again, reference.run(None, {"x": x_on_cpu})[0])
    assert not np.array_equal(again, y)


def test_io_binding_with_ort_values(session: InferenceSession, reference: Any) -> None:
    x = image()
    x_ortvalue = ort.OrtValue.ortvalue_from_numpy(x)
    y_ortvalue = ort.OrtValue.ortvalue_from_shape_and_type([1, 10], np.float32)
    io_binding = session.io_binding()
    io_binding.bind_ortvalue_input("x", x_ortvalue)
    io_binding.bind_ortvalue_output("y", y_ortvalue)
    session.run_with_iobinding(io_binding)
    check(y_ortvalue.numpy(), reference.run(None, {"x": x})[0])
    io_binding = session.io_binding()
    io_binding.bind_input("x", "cpu", 0, np.float32, x_ortvalue.shape(), x_ortvalue.data_ptr())
    io_binding.bind_output("y", "cpu")
    session.run_with_iobinding(io_binding)
    (y,) = io_binding.get_outputs()
    assert isinstance(y, ort.OrtValue) and y.device_name() == "cpu" and y.shape() == [1, 10]
    check(y.numpy(), reference.run(None, {"x": x})[0])


def test_io_binding_with_memory(session: InferenceSession, reference: Any) -> None:
    x, y = image(), np.zeros((1, 10), np.float32)
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, TensorProto.FLOAT, x.shape, x.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    session.run_with_iobinding(binding)
    check(y, reference.run(None, {"x": x})[0])
    binding.bind_output("y", "cpu", 0, np.float32, (1, 9), y.ctypes.data)
    with pytest.raises(collage.InputError, match="bound to float32 of shape"):
        session.run_with_iobinding(binding)
    binding.clear_binding_outputs()
    with pytest.raises(collage.UsageError, match="no output is bound"):
        session.run_with_iobinding(binding)
    with pytest.raises(collage.UsageError, match="give cpu, not cuda"):
        binding.bind_output("y", "cuda")
    with pytest.raises(collage.UsageError, match="element_type and shape"):
        binding.bind_output("y", buffer_ptr=y.ctypes.data)
    with pytest.raises(collage.InputError, match=r"unknown output: z. Valid: y"):
        binding.bind_output("z")


def test_values_of_other_libraries(session: InferenceSession, reference: Any) -> None:
    torch = pytest.importorskip("torch")
    x = torch.rand(1, 3, 16, 16)
    check(session.run(None, {"x": x})[0], reference.run(None, {"x": x.numpy()})[0])
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, np.float32, tuple(x.shape), x.data_ptr())
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    check(torch.from_dlpack(binding.get_outputs()[0].numpy()), reference.run(None, {"x": x.numpy()})[0])


def test_ort_values_in_and_out(session: InferenceSession, reference: Any) -> None:
    x = image()
    given = {"x": ort.OrtValue.ortvalue_from_numpy(x)}
    (wanted,) = reference.run(None, {"x": x})
    check(session.run(None, given)[0], wanted)
    check(session.run_with_ort_values(["y"], given)[0].numpy(), wanted)


def test_run_async_with_a_callback(session: InferenceSession, reference: Any) -> None:
    from queue import Queue

    found: Queue[Any] = Queue()
    x = image()
    session.run_async(["y"], {"x": x}, lambda *about: found.put(about), "mine")
    outputs, user_data, error = found.get(timeout=20)
    check(outputs[0], reference.run(None, {"x": x})[0])
    assert (user_data, error) == ("mine", "")
    session.run_async(["y"], {"z": x}, lambda *about: found.put(about), None)
    outputs, user_data, error = found.get(timeout=20)
    assert outputs == [] and "unknown input: z" in error


def test_session_options(folder: Path, fast: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    sess_options = ort.SessionOptions()
    sess_options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    sess_options.enable_profiling = True
    sess_options.intra_op_num_threads = 1
    options = {name: value for name, value in fast.items() if name != "threads"}
    providers = [("CUDAExecutionProvider", {"device_id": 0}), "CPUExecutionProvider"]
    with caplog.at_level(logging.WARNING, "collage.doors"):
        session = InferenceSession(
            (folder / "model.onnx").read_bytes(), sess_options=sess_options, providers=providers, **options
        )
    (record,) = [each for each in caplog.records if each.name.startswith("collage.doors")]
    for word in ("graph_optimization_level", "enable_profiling", "CUDAExecutionProvider", "provider_options"):
        assert word in record.getMessage()
    assert "intra_op" not in record.getMessage()
    assert session.module.report.threads == 1 and session.get_session_options() is sess_options


def test_open_shapes(fast: dict[str, Any], caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    weights = {"w": np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)}
    model = make_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": ["batch", "length", 8]},
        {"y": ["batch", "length", 4]},
        weights,
    ).SerializeToString()
    session, reference = InferenceSession(model, **fast), onnxruntime.InferenceSession(model)
    assert session.get_inputs()[0].shape == ["batch", "length", 8]
    for wrong in ({}, {"x": np.zeros((1, 2, 7), np.float32)}, {"x": np.zeros((1, 2, 8))}):
        with pytest.raises(collage.InputError, match="input"):
            session.run(None, wrong)
    with caplog.at_level(logging.WARNING):
        for shape in ((2, 3, 8), (2, 3, 8), (1, 5, 8), (4, 1, 8)):
            x = np.random.default_rng().normal(size=shape).astype(np.float32)
            check(session.run(None, {"x": x})[0], reference.run(None, {"x": x})[0])
    assert sum("was not compiled for" in each.getMessage() for each in caplog.records) == 1
    session.module.save(tmp_path / "model.collage")
    saved = InferenceSession(tmp_path / "model.collage")
    assert saved.get_inputs() == session.get_inputs()
    assert [each.shape for each in saved.get_outputs()] == [[2, 3, 4]]


def linear(*shape: str | int) -> bytes:
    """y = x @ w of any rows."""
    weights = {"w": np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)}
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    return make_model([node], {"x": [*shape, 8]}, {"y": [*shape, 4]}, weights).SerializeToString()


@pytest.mark.parametrize("shape", [("batch",), ("batch", "length")])
def test_the_module_of_open_shapes_before_the_first_run(
    shape: tuple[str, ...], fast: dict[str, Any], tmp_path: Path
) -> None:
    model = linear(*shape)
    session, reference = InferenceSession(model, **fast), onnxruntime.InferenceSession(model)
    session.module.save(tmp_path / "model.collage")
    saved = InferenceSession(tmp_path / "model.collage")
    assert saved.get_inputs() == session.get_inputs()
    for each in (session, saved):
        for rows_ in (1, 3):
            x = np.random.default_rng().normal(size=(rows_,) * len(shape) + (8,)).astype(np.float32)
            check(each.run(None, {"x": x})[0], reference.run(None, {"x": x})[0])


@pytest.mark.parametrize("names", [("batch",), ("batch", "length")])
def test_dimensions_that_options_fix(names: tuple[str, ...], fast: dict[str, Any], tmp_path: Path) -> None:
    model, options = linear("batch", "length"), ort.SessionOptions()
    for name in names:
        options.add_free_dimension_override_by_name(name, 3)
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    session = InferenceSession(model, options, **fast)
    assert not [*tmp_path.iterdir()] and options.optimized_model_filepath
    reference = onnxruntime.InferenceSession(model, options)
    for ours, theirs in (
        (session.get_inputs(), reference.get_inputs()),
        (session.get_outputs(), reference.get_outputs()),
    ):
        assert [each.shape for each in ours] == [each.shape for each in theirs]
    x = np.random.default_rng().normal(size=(3, 3, 8)).astype(np.float32)
    check(session.run(None, {"x": x})[0], reference.run(None, {"x": x})[0])
    with pytest.raises(collage.InputError, match="input x has shape 2x3x8"):
        session.run(None, {"x": x[:2]})


def test_methods_without_a_meaning(session: InferenceSession, caplog: pytest.LogCaptureFixture) -> None:
    assert isinstance(session.get_session_options(), ort.SessionOptions)
    with caplog.at_level(logging.WARNING, "collage.doors"):
        for _ in range(2):
            assert session.end_profiling() == ""
            assert session.get_profiling_start_time_ns() == 0
            session.set_providers(["CPUExecutionProvider"])
            session.disable_fallback()
            session.enable_fallback()
    names = [each.getMessage().partition("()")[0] for each in caplog.records]
    assert names == [
        *("end_profiling", "get_profiling_start_time_ns", "set_providers"),
        *("disable_fallback", "enable_fallback"),
    ]


def test_a_session_is_not_pickled(session: InferenceSession) -> None:
    with pytest.raises(TypeError, match=r"a compiled module is not pickled or copied: .* collage.load\(path\)"):
        pickle.dumps(session)


def test_any_number_of_rows(folder: Path, fast: dict[str, Any]) -> None:
    session, reference = (
        InferenceSession(folder / "trees.onnx", **fast),
        onnxruntime.InferenceSession(folder / "trees.onnx"),
    )
    for count in (1, 9):
        x = rows(count)
        for found, wanted in zip(session.run(None, {"X": x}), reference.run(None, {"X": x}), strict=True):
            assert np.array_equal(found, wanted) or np.allclose(found, wanted)


def test_texts_and_maps(fast: dict[str, Any]) -> None:
    model = trees(texts=True).SerializeToString()
    session, reference = InferenceSession(model, **fast), onnxruntime.InferenceSession(model)
    wanted = reference.run(None, {"X": rows(3)})
    binding = session.io_binding()
    binding.bind_cpu_input("X", rows(3))
    binding.bind_output("label")
    session.run_with_iobinding(binding)
    (label,) = binding.get_outputs()  # ONNX Runtime makes no OrtValue of texts
    assert label.numpy().tolist() == binding.copy_outputs_to_cpu()[0].tolist() == wanted[0].tolist()
    model = trees(zipmap=True).SerializeToString()
    session, reference = InferenceSession(model, **fast), onnxruntime.InferenceSession(model)
    assert session.get_outputs()[1].type == reference.get_outputs()[1].type
    for found, wanted in zip(
        *(each.run(["probabilities"], {"X": rows(3)})[0] for each in (session, reference)), strict=True
    ):
        assert found == pytest.approx(wanted)


def test_what_is_wrong(session: InferenceSession, module_file: Path, tmp_path: Path) -> None:
    for feed, words in (
        ({"z": image()}, "unknown input: z"),
        ({}, "missing input: x"),
        ({"x": image().astype(np.float64)}, "dtype float64"),
        ({"x": image()[0]}, "shape 3x16x16"),
    ):
        with pytest.raises(collage.InputError, match=words):
            session.run(None, feed)
    with pytest.raises(collage.UsageError, match=r"unknown output: z. Valid: y"):
        session.run(["z"], {"x": image()})
    with pytest.raises(collage.UsageError, match="must be a list of names"):
        session.run("y", {"x": image()})
    with pytest.raises(collage.InputError, match="a mapping from names to arrays, not a list"):
        session.run(None, [image()])
    with pytest.raises(collage.UsageError, match=r"give the path of .* not a int"):
        InferenceSession(5)
    with pytest.raises(collage.UsageError, match="budget_s: for a model that is compiled"):
        InferenceSession(module_file, budget_s=3)
    with pytest.raises(collage.UsageError, match=r"unknown option: speed. Valid: "):
        InferenceSession(tmp_path / "a.onnx", speed=3)
    with pytest.raises(collage.UsageError, match=r"onnxruntime.SessionOptions, not a dict"):
        InferenceSession(module_file, {})
    with pytest.raises(collage.ModelError, match="no such file"):
        InferenceSession(tmp_path / "a.onnx")
    with pytest.raises(collage.ModuleFileError, match="no such file"):
        InferenceSession(tmp_path / "a.collage")
