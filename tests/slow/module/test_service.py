"""What a service needs of a module: callers on many threads, clones, calls on fixed buffers, forks, mapped files."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import collage
from collage.backends.native import Native
from collage.backends.onednn import OneDnn
from collage.errors import InputError
from collage.graph.dataflow import TensorType
from collage.kernel.buffers import aligned_copy
from collage.native import NativeKernel, Step, Task, TaskError, core_problem
from collage.native.library import address_of
from collage.native.scratch import shared_scratch
from collage.runtime.executor import Executor
from collage.schedule.program import Port, make_program
from collage.schedule.region import Region
from tests.helpers.models import elementwise_net, make_model
from tests.helpers.module import allocations

ROOT = Path(__file__).resolve().parents[3]
needs_core = pytest.mark.skipif(bool(core_problem()), reason=core_problem())
CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_void_p)
needs_onednn = pytest.mark.skipif(not OneDnn().available(), reason=OneDnn().available().reason)
CALLERS = 8


def chain(depth: int = 10, channels: int = 32, size: int = 8) -> onnx.ModelProto:
    """Convolutions one after another: as many launches."""
    rng = np.random.default_rng(0)
    weights, nodes = {}, []
    for i in range(depth):
        weights[f"w{i}"] = (rng.standard_normal((channels, channels, 3, 3)) / channels / 2).astype(np.float32)
        weights[f"b{i}"] = rng.standard_normal(channels).astype(np.float32)
        nodes.append(helper.make_node("Conv", [f"v{i}", f"w{i}", f"b{i}"], [f"v{i + 1}"], pads=[1] * 4))
    shape = [1, channels, size, size]
    return make_model(nodes, {"v0": shape}, {f"v{depth}": shape}, weights)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("service")


@pytest.fixture(scope="module")
def file(folder: Path) -> Path:
    """Ten launches on the team."""
    found = collage.compile(chain(), backends=["onednn"], threads=2, db=folder / "db.sqlite", progress=False)
    assert len(found.program.launches) >= 10
    found.save(folder / "chain.collage")
    return folder / "chain.collage"


@pytest.fixture(scope="module")
def module(file: Path) -> collage.CompiledModule:
    return collage.load(file)


@pytest.fixture(scope="module")
def engine(folder: Path) -> Path:
    """A module of an engine with threads of its own."""
    found = collage.compile(
        elementwise_net(), backends=["onnxruntime"], threads=2, db=folder / "db.sqlite", progress=False
    )
    found.save(folder / "engine.collage")
    return folder / "engine.collage"


def image(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((1, 32, 8, 8)).astype(np.float32)


def hammer(calls: Sequence[Callable[[np.ndarray], np.ndarray]], seconds: float) -> None:
    """Make each call again and again from a thread of its own, on inputs of its own, and check every output."""
    inputs = [image(seed) for seed in range(len(calls))]
    expected = [call(x) for call, x in zip(calls, inputs, strict=True)]
    wrong = [0] * len(calls)
    start, end = threading.Barrier(len(calls)), time.monotonic() + seconds

    def work(i: int) -> None:
        start.wait()
        while time.monotonic() < end:
            wrong[i] += not np.array_equal(calls[i](inputs[i]), expected[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(calls))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len({e.tobytes() for e in expected}) == len(calls)
    assert wrong == [0] * len(calls)


# ----------------------------------------------------------------------------------------------------------
# -------- Callers


@needs_onednn
@pytest.mark.parametrize("cloned", [False, True])
def test_callers_get_their_own_results(cloned: bool, module: collage.CompiledModule) -> None:
    hammer([module.clone() if cloned else module for _ in range(CALLERS)], 1.0)


class Meet(NativeKernel):
    """Waits, on each run, until somebody else is running it; remembers the scratch memory it was given."""

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.met, self.scratch = threading.Barrier(2), []

    def steps(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Sequence[Step]:
        def run(a: object, b: object, n: int, c: object) -> int:
            try:
                self.met.wait(10 if self.threads == 1 else 0.2)
            except threading.BrokenBarrierError:
                return 1
            return 0

        self.scratch.append(shared_scratch(self.threads, 0, 64))
        callback = CALLBACK(run)
        return [Step((Task(address_of(callback), keep=(callback,)),))]


def meet(threads: int) -> tuple[Meet, list[Executor]]:
    """Two executors of one such kernel."""
    kind = TensorType((4,), "float32")
    regions = [Region("meet", ("meet",), (0,), (), (0,), (1,), threads=threads)]
    program = make_program(regions, [Port("x", 0, kind)], [Port("y", 1, kind)], {0: kind, 1: kind}, threads)
    kernel = Meet(threads)
    first = Executor(program, [kernel], {})
    return kernel, [first, first.clone()]


@needs_core
def test_clones_of_a_single_threaded_module_run_at_the_same_time() -> None:
    """With scratch memory of their own; those of a team take turns, and share it."""
    kernel, executors = meet(1)
    assert not np.may_share_memory(*kernel.scratch)
    x = np.zeros(4, np.float32)
    with ThreadPoolExecutor(2) as pool:
        for _ in range(20):
            list(pool.map(lambda each: each.run([x]), executors))
    kernel, executors = meet(2)
    assert np.may_share_memory(*kernel.scratch)
    with ThreadPoolExecutor(2) as pool:
        failed = [pool.submit(each.run, [x]).exception() for each in executors]
    assert all(isinstance(each, TaskError) for each in failed)


# ----------------------------------------------------------------------------------------------------------
# -------- Calls on fixed buffers


@needs_onednn
def test_a_bound_call_reads_and_writes_in_place(module: collage.CompiledModule) -> None:
    mine = aligned_copy(image(1))
    call = module.bind(inputs={"v0": mine})
    (output,) = call.outputs.values()
    assert call.inputs["v0"] is mine
    for seed in range(5):
        mine[...] = image(seed)
        call()
        np.testing.assert_array_equal(output, module(image(seed)))
        np.testing.assert_array_equal(mine, image(seed))


def test_outputs_that_are_inputs_or_constants_are_copied(tmp_path: Path) -> None:
    weights = {"k": np.arange(3, dtype=np.float32)}
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Identity", ["k"], ["fixed"]),
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("Identity", ["y"], ["again"]),
    ]
    model = make_model(nodes, {"x": [3]}, {"same": [3], "fixed": [3], "y": [3], "again": [3]}, weights)
    call = collage.compile(model, backends=["tvm"], db=tmp_path / "db.sqlite", progress=False).bind()
    for x in ([-1, 0, 2], [3, -4, 5]):
        for output in call.outputs.values():
            output.fill(np.nan)
        call.inputs["x"][...] = x
        call()
        np.testing.assert_array_equal(call.outputs["same"], x)
        np.testing.assert_array_equal(call.outputs["fixed"], weights["k"])
        np.testing.assert_array_equal(call.outputs["y"], np.maximum(x, 0))
        np.testing.assert_array_equal(call.outputs["again"], np.maximum(x, 0))


@needs_onednn
def test_buffers_are_zeros_until_they_are_filled(module: collage.CompiledModule) -> None:
    call = module.bind()
    for array in (*call.inputs.values(), *call.outputs.values()):
        array.fill(np.nan)
    del call, array  # others get their memory
    call = module.bind()
    assert not any(array.any() for array in (*call.inputs.values(), *call.outputs.values()))
    call()
    np.testing.assert_allclose(call.outputs["v10"], module(np.zeros_like(call.inputs["v0"])), rtol=1e-5)


@needs_onednn
def test_buffers_that_do_not_fit_are_refused(module: collage.CompiledModule) -> None:
    good = aligned_copy(image(0))
    shifted = aligned_copy(np.zeros(good.size + 16, np.float32))[1 : good.size + 1].reshape(good.shape)
    frozen = aligned_copy(good)
    frozen.flags.writeable = False
    for inputs, outputs, words in (
        ({"z": good}, {}, "unknown input: z. Valid: v0"),
        ({}, {"v0": good}, "unknown output: v0. Valid: v10"),
        ({"v0": good[:, :1]}, {}, "input v0 is float32"),
        ({"v0": good.astype(np.float64)}, {}, "input v0 is float64"),
        ({"v0": good.tolist()}, {}, "no numpy array"),
        ({"v0": shifted}, {}, "multiple of 64"),
        ({"v0": good}, {"v10": good}, "output v10 overlaps v0"),
        ({}, {"v10": frozen}, "read-only"),
    ):
        with pytest.raises(InputError, match=words):
            module.bind(inputs, outputs)  # type: ignore[arg-type]


def counted(file: Path, *, control: bool = False) -> dict[str, Any]:
    found = allocations.count(file, runs=100, control=control)
    if found is None:
        pytest.skip("no C compiler")
    return found


@pytest.mark.skipif(not Native().available(), reason=Native().available().reason)
def test_nothing_is_allocated_between_the_first_kernel_and_the_last(folder: Path) -> None:
    """Ten products with kernels of our own, and a softmax that TVM compiled."""
    rng = np.random.default_rng(0)
    weights = {f"w{i}": (rng.standard_normal((256, 256)) / 16).astype(np.float32) for i in range(10)}
    nodes = [helper.make_node("MatMul", [f"v{i}", f"w{i}"], [f"v{i + 1}"]) for i in range(10)]
    nodes.append(helper.make_node("Softmax", ["v10"], ["y"]))
    model = make_model(nodes, {"v0": [32, 256]}, {"y": [32, 256]}, weights)
    names = ["native", "tvm"]
    module = collage.compile(model, backends=names, threads=2, db=folder / "db.sqlite", progress=False)
    assert {region.backend for region in module.program.launches} == set(names)
    file = folder / "products.collage"
    module.save(file)
    found = counted(file)
    assert (found["launches"], found["calls_from_python"]) == (11, 1)
    assert not _in_every_run(found["allocations_per_run"])
    # The dynamic linker may allocate once in all runs.
    assert sum(counted(file, control=True)["allocations_per_run"].values()) == pytest.approx(2, abs=0.1)


def _in_every_run(counts: Mapping[str, float]) -> dict[str, float]:
    """Without what happens once in many runs: the dynamic linker allocates when a thread first comes by."""
    return {name: count for name, count in counts.items() if count >= 0.5}


def run(program: str, *arguments: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-c", program, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, timeout=300, capture_output=True, text=True)


@needs_onednn
def test_kernels_on_the_team_run_in_a_forked_child(file: Path) -> None:
    """Also when another thread was in the middle of a call, which holds locks that nobody in the child gives back."""
    done = run(
        """
import os, sys, threading
import numpy as np
import collage
module = collage.load(sys.argv[1])
bound = module.bind()
x = np.random.default_rng(0).standard_normal((1, 32, 8, 8)).astype(np.float32)
expected = module(x)
stop = threading.Event()
def call():
    while not stop.is_set():
        module(x)
callers = [threading.Thread(target=call) for _ in range(3)]
for each in callers:
    each.start()
statuses = []
for _ in range(6):
    child = os.fork()
    if not child:
        bound.inputs["v0"][...] = x
        for _ in range(5):
            bound()
            right = np.array_equal(module(x), expected) and np.array_equal(bound.outputs["v10"], expected)
            if not right:
                os._exit(1)
        os._exit(0)
    statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
stop.set()
for each in callers:
    each.join()
assert np.array_equal(module(x), expected)
raise SystemExit(any(statuses))
""",
        file,
    )
    assert done.returncode == 0, done.stderr


def test_an_engine_says_that_it_does_not_survive_a_fork(engine: Path) -> None:
    done = run(
        """
import os, sys
import numpy as np
import collage
module = collage.load(sys.argv[1])
x = np.zeros((4, 64), np.float32)
module(x)
child = os.fork()
if not child:
    try:
        module(x)
    except collage.CollageError as error:
        print(error, flush=True)
        os._exit(0)
    os._exit(1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
module(x)
raise SystemExit(status)
""",
        engine,
    )
    assert done.returncode == 0, done.stderr
    assert "forked" in done.stdout
    assert "onnxruntime" in done.stdout
    assert "load it again" in done.stdout


# ----------------------------------------------------------------------------------------------------------
# -------- The file


def mapped(path: Path) -> list[tuple[int, int]]:
    """Address ranges where this process has the file."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(str(path)):
            begin, _, end = line.split()[0].partition("-")
            found.append((int(begin, 16), int(end, 16)))
    return found


@needs_onednn
def test_weights_are_read_where_the_file_is_mapped(file: Path) -> None:
    module = collage.load(file)
    ranges = mapped(file)
    weights = [each for kernel in module.executor._kernels for each in getattr(kernel, "_weights", ())]
    assert sum(each.nbytes for each in weights) >= 10 * 32 * 32 * 9 * 4
    for each in weights:
        assert any(begin <= each.ctypes.data < end for begin, end in ranges)
        assert each.ctypes.data % 64 == 0
        assert not each.flags.writeable


def test_loading_imports_no_compiler(file: Path) -> None:
    """Nor an engine: TVM, ONNX and ONNX Runtime take seconds on a busy machine."""
    program = """
import sys
import collage
collage.load(sys.argv[1])
print(*{"tvm", "onnx", "onnxruntime", "openvino", "collage.compiler.compile"} & set(sys.modules))
"""
    done = run(program, file)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


@needs_onednn
def test_a_mapped_module_outlives_its_file_and_is_saved_again(file: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.collage"
    copy.write_bytes(file.read_bytes())
    module = collage.load(copy)
    expected = module(image(0))
    module.save(copy)  # over itself
    assert copy.read_bytes() == file.read_bytes()
    copy.unlink()
    np.testing.assert_array_equal(module(image(0)), expected)
    module.save(copy)
    np.testing.assert_array_equal(collage.load(copy)(image(0)), expected)


@needs_onednn
def test_many_loads_and_clones_leave_nothing_behind(file: Path) -> None:
    def resident() -> int:
        gc.collect()  # what waits for it is no leak
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def rounds(count: int) -> None:
        for _ in range(count):
            module = collage.load(file)
            module.clone()(image(0))
            module.bind()()

    def collected() -> int:
        gc.collect()  # what waits for it is no leak
        return len(mapped(file))

    rounds(10)
    before, maps = resident(), collected()
    rounds(40)
    assert resident() - before < 8 << 20
    assert collected() <= maps
