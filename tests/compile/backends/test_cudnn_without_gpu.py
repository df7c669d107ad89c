"""The real cuDNN on a machine without a GPU: it checks our graphs, and makes plans for an H100 that it is told of.

cuDNN makes plans for a GPU that is not there from a description of it, here by public numbers. The tests need the
wheels of cuDNN, cuBLAS and NVRTC, and are skipped without them. What the plans compute and how fast they are, only a
GPU shows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.compile.frontend.test_to_onnx import Net
from tests.helpers.cuda_processes import ROOT, SOURCES
from tests.slow.backends.test_cudnn import CASES, attention, conv

DRIVER = """
cuCtxGetCurrent cuCtxGetLimit cuCtxPopCurrent cuCtxPushCurrent cuDeviceGet cuDeviceGetCount cuDriverGetVersion
cuGetErrorName cuGetErrorString cuGetProcAddress cuGetProcAddress_v2 cuInit cuKernelGetAttribute
cuLaunchCooperativeKernel cuLaunchKernel cuLaunchKernelEx cuLibraryLoadFromFile cuLinkAddData cuLinkComplete
cuLinkCreate cuLinkDestroy
cuModuleGetFunction cuModuleLoadData cuModuleUnload cuOccupancyMaxPotentialClusterSize cuStreamGetCtx
cuTensorMapEncodeIm2col cuTensorMapEncodeTiled
"""
"""What cuDNN loads of the driver before it makes plans. All of it answers that there is no GPU."""

LOADERS = """
int cuLibraryLoadData(void** made) { return *made = &made, 0; }
int cuLibraryGetKernel(void** made) { return *made = &made, 0; }
int cuKernelGetFunction(void** made) { return *made = &made, 0; }
int cuKernelSetAttribute(void) { return 0; }
int cuLibraryUnload(void) { return 0; }
"""
"""What it does with kernels that it has compiled: they are accepted, and nobody runs them."""

PLANS = """
import json, sys
from itertools import islice
from pathlib import Path
from collage.backends.base import UnsupportedError
from collage.backends.cudnn_kernels.build import build
from collage.backends.cudnn_kernels.plans import described_device, offered_plans
from collage.backends.cudnn_kernels.task import task_of
from collage.frontend.model import import_model
from scripts.lib.gpu.half import in_half
from tests.slow.backends.test_cudnn import CASES, IN_FLOAT16, OPSETS, matched
from tests.compile.backends.test_cudnn_without_gpu import NETWORKS
from tests.compile.frontend.test_to_onnx import Net

def graphs(make, opset=18, half=False):
    net = Net(opset)
    model = net.build(make(net))
    task = task_of(matched(import_model(in_half(model) if half else model, halves=True)))
    for stored in task.formats:
        for precision in task.offered:
            precision = precision or task.own
            for number, lowered in enumerate(task.lower(stored, precision)):
                yield stored.name, precision, number, lowered.graph

built = 0
for name, make in CASES.items():
    for *_, graph in graphs(make, OPSETS.get(name, 18)):
        build(graph, None)
        built += 1
    for *_, graph in graphs(make, OPSETS.get(name, 18), half=True) if name in IN_FLOAT16 else ():
        build(graph, None)
        built += 1
device = described_device(Path(sys.argv[1]).read_bytes())
found = {}
kinds = {"": False, " of a float16 model": True}
every = [(name + kind, make, half) for name, make in NETWORKS.items() for kind, half in kinds.items()]
for name, make, half in every:
    for stored, precision, number, graph in graphs(make, half=half):
        try:
            plans = list(islice(offered_plans(graph, precision, direct=False, device=device), 3))
        except UnsupportedError as error:
            found[f"{name}: {stored} {precision} {number}"] = str(error)
            continue
        assert all(len(each.data) > 100 for each in plans)
        found[f"{name}: {stored} {precision} {number}"] = len(plans)
print(json.dumps({"built": built, "plans": found}))
"""

NETWORKS: Mapping[str, Callable[[Net], str]] = {
    "conv": lambda net: conv(net, (1, 64, 56, 56), (64, 64, 3, 3), "", pads=[1, 1, 1, 1]),
    "fused": lambda net: conv(net, (1, 64, 56, 56), (64, 64, 3, 3), "bias residual Relu", pads=[1] * 4),
    "depthwise": lambda net: conv(net, (1, 64, 28, 28), (64, 1, 3, 3), "bias Relu", group=64, pads=[1] * 4),
    "3d": lambda net: conv(net, (1, 64, 8, 28, 28), (64, 64, 3, 3, 3), "bias Relu", pads=[1] * 6),
    "transposed": lambda net: conv(
        net, (1, 128, 8, 8), (128, 64, 4, 4), "", transposed=True, strides=[2, 2], pads=[1] * 4
    ),
    "pool": lambda net: net.op("MaxPool", net.input(1, 64, 56, 56), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
    "mean": lambda net: net.op("GlobalAveragePool", net.input(1, 512, 7, 7)),
    "norm": lambda net: net.op("LayerNormalization", net.input(1, 128, 768), net.random(768), net.random(768), axis=-1),
    "attention": lambda net: attention(net, columns=64),
    "masked": lambda net: attention(net, (2, 1, 5, 5), columns=64),
}


def folder_of(library: str) -> Path:
    """The folder of a library of NVIDIA's wheels. The test is skipped without it."""
    spec = find_spec("nvidia")
    for each in (spec.submodule_search_locations or ()) if spec is not None else ():
        for path in Path(each).glob(f"*/lib/{library}"):
            return path.parent
    pytest.skip(f"{library} is not installed")


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """What the library makes of all graphs, in a process of its own, which finds a driver without a GPU."""
    folders = [str(folder_of(each)) for each in ("libcudnn.so.9", "libcublasLt.so.13", "libnvrtc.so.13")]
    here = tmp_path_factory.mktemp("driver")
    source = here / "driver.c"
    source.write_text(LOADERS + "\n".join(f"int {name}(void) {{ return 100; }}" for name in DRIVER.split()))
    made = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(here / "libcuda.so.1"), str(source)]
    subprocess.run(["gcc", *made], check=True)
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": ":".join([str(here), *folders]),
        "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
    }
    command = [sys.executable, "-c", PLANS, str(SOURCES / "h100.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert not done.returncode, done.stdout + done.stderr
    found: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_all_graphs_are_accepted(answers: Mapping[str, Any]) -> None:
    assert answers["built"] > 2 * len(CASES)


def test_plans_for_an_h100(answers: Mapping[str, Any]) -> None:
    """Each graph has a plan in each precision, and for models in float16; attention has one in one of its forms."""
    plans = answers["plans"]
    halves = {each for each in plans if "of a float16 model" in each}
    assert {each.partition(" of a")[0] for each in halves} == {*NETWORKS}
    assert all(" fp16 " in each for each in halves)
    for name, found in plans.items():
        if name.startswith(("attention", "masked")):
            first = name.rpartition(" ")[0]
            found = max(n for each, n in plans.items() if each.startswith(first) and isinstance(n, int))
        assert isinstance(found, int), (name, found)
        assert found >= 1, (name, plans)
