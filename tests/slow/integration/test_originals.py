"""Never slower: the engines on the model as its author wrote it, with their settings."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

import collage
from collage.backends.base import BackendKind
from collage.backends.engine import Engine
from collage.backends.layout import LayoutTransforms
from collage.backends.onnxruntime import OnnxRuntime
from collage.backends.openvino import OpenVino
from collage.backends.view import View
from collage.compiler.plan import Whole
from collage.kernel.kernel import Kernel
from collage.kernel.options import BuildOptions
from tests.helpers.backends_for_tests import NumpyBackend
from tests.helpers.models import elementwise_net, make_model
from tests.helpers.preferred import preferred

ENGINES = [
    OnnxRuntime(),
    pytest.param(OpenVino(), marks=pytest.mark.skipif(not OpenVino().available(), reason="not installed")),
]


def awkward() -> onnx.ModelProto:
    """Inputs that are read in another order than they are given, an initializer among them, and odd outputs."""
    weights = {"w": np.full((2, 3), 2.0, np.float32), "k": np.arange(3, dtype=np.float32)}
    nodes = [
        helper.make_node("Identity", ["k"], ["fixed"]),
        helper.make_node("Sub", ["b", "w"], ["s"]),
        helper.make_node("Exp", ["a"], ["e"]),
        helper.make_node("Mul", ["s", "e"], ["y"]),
        helper.make_node("Identity", ["y"], ["again"]),
    ]
    shapes = {"b": [2, 3], "w": [2, 3], "a": [2, 3]}
    outputs = {"fixed": [3], "again": [2, 3], "s": [2, 3], "y": [2, 3]}
    return make_model(nodes, shapes, outputs, weights)


def unread(*nodes: onnx.NodeProto, element: int = onnx.TensorProto.INT64) -> onnx.ModelProto:
    """tanh(xw), and something with it that does not depend on the numbers of u."""
    product = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Tanh", ["m"], ["t"])]
    weights = {
        "w": np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8),
        "zero": np.array(0),
        "one": np.array(1),
        "yes": np.array([True]),
    }
    return make_model([*product, *nodes], {"u": [4, 8], "x": [4, 8]}, {"y": [4, 8]}, weights, types={"u": element})


def branch(*nodes: onnx.NodeProto) -> onnx.GraphProto:
    """A branch that gives its value ``r``."""
    result = helper.make_tensor_value_info("r", onnx.TensorProto.FLOAT, [4, 8])
    return helper.make_graph(list(nodes), "branch", [], [result])


UNREAD = {
    "not at all": unread(helper.make_node("Neg", ["t"], ["y"])),
    "its shape": unread(
        helper.make_node("Shape", ["u"], ["s"]),
        helper.make_node("Gather", ["s", "one"], ["n"]),
        helper.make_node("Range", ["zero", "n", "one"], ["p"]),
        helper.make_node("Cast", ["p"], ["f"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Add", ["t", "f"], ["y"]),
    ),
    "in a branch that is not taken": unread(
        helper.make_node(
            "If",
            ["yes"],
            ["y"],
            then_branch=branch(helper.make_node("Neg", ["t"], ["r"])),
            else_branch=branch(helper.make_node("Add", ["t", "u"], ["r"])),
        ),
        element=onnx.TensorProto.FLOAT,
    ),
}


@pytest.mark.skipif(not OpenVino().available(), reason="not installed")
@pytest.mark.parametrize("name", UNREAD)
def test_engines_are_compared_where_an_input_is_not_read(name: str, tmp_path: Path) -> None:
    model = UNREAD[name]
    module = collage.compile(
        model,
        db=tmp_path / "db.sqlite",
        progress=False,
        backends=["native", "tvm", "onnxruntime", "openvino"],
    )
    compared = [each for each in module.report.candidates if each.original]
    assert {each.backend for each in compared if not each.profile} == {"onnxruntime", "openvino"}
    assert {each.reason for each in compared} == {""}
    rng = np.random.default_rng(0)
    u = rng.standard_normal((4, 8)).astype(np.float32).astype(module.inputs["u"].split("[")[0])
    inputs = {"u": u, "x": rng.standard_normal((4, 8)).astype(np.float32)}
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(module.run(inputs)["y"], session.run(None, inputs)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("position", [0, 1, 2])
def test_every_profile_gives_the_right_numbers_from_a_module_file(
    engine: OnnxRuntime | OpenVino, position: int, tmp_path: Path
) -> None:
    profile = engine.profiles(BuildOptions(threads=2))[position]
    with preferred(lambda plan: isinstance(plan, Whole) and plan.profile == profile):
        module = collage.compile(
            awkward(), backends=[engine.name], threads=2, db=tmp_path / "db.sqlite", progress=False
        )
    (region,) = module.program.executed
    assert region.profile == profile
    for node in module.summary()["nodes"]:
        assert [each["verdict"] for each in node["candidates"]].count("chosen") == 1
    module.save(tmp_path / "net.collage")
    rng = np.random.default_rng(0)
    x = {name: rng.standard_normal((2, 3)).astype(np.float32) for name in "ab"}
    session = ort.InferenceSession(awkward().SerializeToString(), providers=["CPUExecutionProvider"])
    found = collage.load(tmp_path / "net.collage").run(x)
    for name, array in zip(("fixed", "again", "s", "y"), session.run(None, x), strict=True):
        np.testing.assert_allclose(found[name], array, rtol=1e-5)


def test_profiles_reach_onnx_runtime() -> None:
    engine, model = OnnxRuntime(), elementwise_net().SerializeToString()
    base = BuildOptions(threads=2, exclusive=True)
    found = {
        profile: engine.load(model, replace(base, profile=profile))._session.get_session_options()
        for profile in engine.profiles(base)
    }
    assert set(found) == {"", "plain layout", "no spinning", "one thread"}
    level = ort.GraphOptimizationLevel
    assert found[""].graph_optimization_level == level.ORT_ENABLE_ALL
    assert found["plain layout"].graph_optimization_level == level.ORT_ENABLE_EXTENDED
    assert [found[each].intra_op_num_threads for each in ("", "one thread")] == [2, 1]
    assert found["no spinning"].get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert engine.profiles(BuildOptions(threads=1)) == ("", "plain layout")


@pytest.mark.skipif(not OpenVino().available(), reason="not installed")
def test_profiles_reach_openvino() -> None:
    engine, model = OpenVino(), elementwise_net().SerializeToString()
    base = BuildOptions(threads=2, exclusive=True)
    found = {profile: engine.load(model, replace(base, profile=profile))._compiled for profile in engine.profiles(base)}
    assert set(found) == {"", "not pinned", "one thread"}
    assert [found[each].get_property("INFERENCE_NUM_THREADS") for each in ("", "one thread")] == [2, 1]
    assert found["not pinned"].get_property("ENABLE_CPU_PINNING") is False
    assert engine.profiles(BuildOptions(threads=1)) == ("",)


class Crashing(NumpyBackend, Engine):
    """An engine that takes the process with it when it is given a whole model of an author's."""

    name: ClassVar[str] = "crashing"
    kind: ClassVar[BackendKind] = BackendKind.ENGINE

    def codegen_model(self, model: onnx.ModelProto, options: BuildOptions) -> bytes:
        return b"original"

    def profiles(self, options: BuildOptions) -> Sequence[str]:
        return ("", "worse")

    def load(self, artifact: bytes, options: BuildOptions) -> Kernel:
        if artifact == b"original":
            os.abort()
        return super().load(artifact, options)


def test_an_engine_that_crashes_on_the_original_costs_itself_only(tmp_path: Path) -> None:
    registry = collage.Registry()
    for backend in (Crashing(), OnnxRuntime(), View(), LayoutTransforms()):
        registry.register(backend)
    module = collage.compile(elementwise_net(), registry=registry, db=tmp_path / "db.sqlite", progress=False)
    verdicts = {
        each["split"]: each["verdict"]
        for each in module.summary()["nodes"][0]["candidates"]
        if each["backend"] == "crashing" and each["pattern"] == "whole model"
    }
    assert verdicts.keys() == {"as written", "folded"}
    assert all("crashed" in verdict and "SIGABRT" in verdict for verdict in verdicts.values())


@pytest.mark.skipif(not OpenVino().available(), reason="not installed")
def test_signals_are_survived_after_openvino_models_have_gone(tmp_path: Path) -> None:
    """Each OpenVINO core moves the stack that signal handlers run on; the one it moves back to must be there."""
    onnx.save_model(elementwise_net(), str(tmp_path / "net.onnx"))
    code = (
        "import os, signal, sys\n"
        "from collage.backends.base import BuildOptions\n"
        "from collage.backends.openvino import OpenVino\n"
        "model = open(sys.argv[1], 'rb').read()\n"
        "sessions = [OpenVino().session(model, BuildOptions(threads=1)) for _ in range(3)]\n"
        "while sessions:\n"
        "    sessions.pop(0)\n"
        "signal.signal(signal.SIGUSR1, lambda *about: print('handled'))\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "net.onnx")], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "handled\n"), done.stderr
