"""TensorRT without a GPU: what the probe says, and our side of its interface.

The engine is a stand-in with the signatures of TensorRT's bindings, which runs the ONNX model that it was given in ONNX
Runtime, on the memory of the stand-in for the driver. What TensorRT itself does is not tested here, nor anywhere: that
takes an NVIDIA GPU.
"""

from __future__ import annotations

import importlib.util
import json
import sqlite3
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from collage.backends.base import UnsupportedError
from collage.backends.tensorrt import TensorRt
from collage.frontend.model import import_model
from collage.frontend.subgraph import Subgraph
from collage.kernel.options import BuildOptions
from tests.helpers.cuda_driver import Driver, pretend
from tests.helpers.cuda_processes import SOURCES, Gpu
from tests.helpers.models import conv_net, make_model

Installer = Callable[..., None]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installer:
    """Lets distributions look installed."""

    def install(**versions: str) -> None:
        for name, version in versions.items():
            folder = tmp_path / "site" / f"{name}-{version}.dist-info"
            folder.mkdir(parents=True)
            lines = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
            (folder / "METADATA").write_text(lines)
        monkeypatch.syspath_prepend(tmp_path / "site")

    return install


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (lambda name: Driver(1, version=12080), "the NVIDIA driver is for CUDA 12.8"),
        (lambda name: Driver(1, problem=100), "the NVIDIA driver finds no GPU"),
    ],
)
def test_no_gpu(load: Callable[[str], Any], reason: str, installed: Installer, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tensorrt_cu13="11.4.0")
    pretend(monkeypatch, load)
    found = TensorRt().available().reason
    assert found.startswith(f"{reason}; it needs an NVIDIA GPU, its driver for CUDA 13.0 or later, and pip install")
    assert "'collage-compiler[tensorrt]'" in found and "has never run on a GPU" in found


NETWORKS = """
import sys
import numpy as np, onnx
from collage.backends.tensorrt import TensorRt
from collage.frontend.model import import_model
from collage.frontend.subgraph import Subgraph
from collage.kernel.device_array import copy_on, empty_on, to_host
from collage.kernel.options import BuildOptions
for at in range(1, len(sys.argv), 3):
    path, feeds, out = sys.argv[at : at + 3]
    imported = import_model(onnx.load(path))
    subgraph = Subgraph(imported, tuple(range(len(imported.graph.nodes))))
    backend, options = TensorRt(), BuildOptions()
    assert str(backend.variants(subgraph, options)[0]) == "cuda:plain"
    kernel = backend.load(backend.codegen(subgraph, options), options)
    given = dict(np.load(feeds))
    names = {value: name for name, value in imported.onnx_values.items()}
    inputs = [copy_on("cuda", given[names[v]]) for v in subgraph.inputs]
    outputs = [empty_on("cuda", kind.shape, kind.dtype) for kind in subgraph.output_types]
    call = kernel.bind(inputs, outputs)
    call()
    whole = empty_on("cuda", (outputs[0].nbytes + 64,), "uint8")
    odd = whole[64:].view(outputs[0].dtype).reshape(outputs[0].shape)  # not where TensorRT wants it
    kernel.bind(inputs, [odd, *outputs[1:]])()
    found = {names[v]: to_host(each) for v, each in zip(subgraph.outputs, outputs)}
    np.savez(out, **found, odd=to_host(odd))
"""

COMPILE = """
import json, sys
import numpy as np, collage
model, feeds, db, out = sys.argv[1:]
options = {"db": db, "device": "cuda", "progress": False, "threads": 1}
collage.compile(model, backends=["tensorrt", "onnxruntime"], **options)
again = collage.compile(model, backends=["tensorrt", "onnxruntime"], **options)
module = collage.compile(model, backends=["tensorrt"], strict=True, **options)
module.save(out)
inputs = dict(np.load(feeds))
for _ in range(4):
    outputs = module.run(inputs)
np.savez(out + ".npz", **outputs)
from collage.bench.engines import Contest, bench
raced = bench(model, Contest(engines=["tensorrt"], rounds=2, threads=1), module=out)
launches = [[r.backend, r.layout] for r in module.program.launches]
print(json.dumps([again.report.measurements_made, launches, [*raced["engines"]]]))
"""


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Puts the stand-in in the place of ``tensorrt``, and the cache folder in ours. It has no memory of a GPU here."""
    path = SOURCES / "tensorrt_packages" / "tensorrt" / "__init__.py"
    spec = importlib.util.spec_from_file_location("tensorrt", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "tensorrt", module)
    pretend(monkeypatch, lambda name: Driver(1))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return module


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Gpu:
    return replace(Gpu.build(tmp_path_factory.mktemp("gpu")), packages=("packages", "tensorrt_packages"))


def _whole(model: onnx.ModelProto) -> Subgraph:
    imported = import_model(model)
    return Subgraph(imported, tuple(range(len(imported.graph.nodes))))


def _elementwise(*ops: str) -> Subgraph:
    names = ["x", *(f"v{i}" for i in range(len(ops) - 1)), "y"]
    nodes = [onnx.helper.make_node(op, [names[i]], [names[i + 1]]) for i, op in enumerate(ops)]
    return _whole(make_model(nodes, {"x": [4, 8]}, {"y": [4, 8]}))


def _outputs(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> dict[str, Any]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(feeds)), strict=True))


def _two_outputs() -> tuple[onnx.ModelProto, dict[str, Any]]:
    nodes = [onnx.helper.make_node("Sub", ["a", "b"], ["d"]), onnx.helper.make_node("Exp", ["b"], ["e"])]
    model = make_model(nodes, {"a": [2, 3], "b": [2, 3]}, {"d": [2, 3], "e": [2, 3]})
    return model, {"a": np.full((2, 3), 5, np.float32), "b": np.full((2, 3), 2, np.float32)}


def test_networks_run_on_the_gpu(gpu: Gpu, tmp_path: Path) -> None:
    """On its arrays, in the order of inputs and outputs, and where one does not begin at a multiple of 256 bytes."""
    x = np.random.default_rng(0).standard_normal((1, 3, 16, 16)).astype(np.float32)
    cases = [(conv_net(), {"x": x}), _two_outputs()]
    paths = []
    for number, (model, feeds) in enumerate(cases):
        paths += [str(tmp_path / f"{number}{each}") for each in (".onnx", ".feeds.npz", ".npz")]
        onnx.save(model, paths[-3])
        np.savez(paths[-2], **feeds)
    gpu.run(NETWORKS, *paths)
    for number, (model, feeds) in enumerate(cases):
        found, wanted = np.load(tmp_path / f"{number}.npz"), _outputs(model, feeds)
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5)
        assert any(np.array_equal(found["odd"], found[name]) for name in wanted)


def test_a_compile_with_it(gpu: Gpu, tmp_path: Path) -> None:
    """Regions and the whole model are candidates, with copies as launches of their own; all of it is measured once."""
    model, feeds = _two_outputs()
    onnx.save(model, tmp_path / "model.onnx")
    np.savez(tmp_path / "feeds.npz", **feeds)
    paths = [str(tmp_path / each) for each in ("model.onnx", "feeds.npz", "db.sqlite", "out.collage")]
    made, launches, raced = json.loads(
        gpu.run(COMPILE, *paths, XDG_CACHE_HOME=str(tmp_path / "cache")).splitlines()[-1]
    )
    assert made == 0 and {*raced} == {"tensorrt", "collage"}  # which have the outputs of ONNX Runtime
    database = sqlite3.connect(tmp_path / "db.sqlite")
    rows = database.execute("SELECT backend, settings, median_us FROM kernels")
    measured = [settings for backend, settings, us in rows if backend == "tensorrt" and us is not None]
    assert "" in measured  # copies, which are the same in all models
    assert all(each.startswith("[cuda:plain") for each in measured if each)
    raced_whole = {text for (text,) in database.execute("SELECT description FROM networks")}
    assert {f"model: tensorrt, {form}" for form in ("as written", "folded")} <= raced_whole
    found = np.load(tmp_path / "out.collage.npz")
    for name, wanted in _outputs(model, feeds).items():
        np.testing.assert_allclose(found[name], wanted, rtol=1e-6)
    (timings,) = (tmp_path / "cache" / "collage").glob("tensorrt-*")
    assert timings.read_bytes() == b"timed"
    assert {*map(tuple, launches)} == {
        ("tensorrt", layout) for layout in ("plain -> cuda:plain", "cuda:plain", "cuda:plain -> plain")
    }


def test_what_tensorrt_refuses_is_a_rejection_with_its_words(standin: Any) -> None:
    for op, words in (("Tan", "parser: Tan is not known"), ("Sin", "builds no engine: no tactic for Sin")):
        with pytest.raises(UnsupportedError, match=words):
            TensorRt().codegen(_elementwise(op, "Relu"), BuildOptions())
    with pytest.raises(RuntimeError, match="cannot load the engine: the plan is of another version"):
        TensorRt().load(b"of another version", BuildOptions())
