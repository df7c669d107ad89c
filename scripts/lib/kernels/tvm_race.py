"""Our TVM kernels against TVM's default lowering and ONNX Runtime, on the cases beside this module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import tvm
from onnx import TensorProto, helper
from tvm import relax

from collage.backends.tvm_codegen.artifact import TensorSpec, empty_aligned
from collage.backends.tvm_codegen.build import compile_kernel
from collage.backends.tvm_codegen.host import host_target
from collage.backends.tvm_codegen.lower import lower
from collage.backends.tvm_codegen.run import load_kernel
from collage.errors import CollageError
from scripts.lib.kernels.turns import Turn, in_turns
from scripts.lib.kernels.tvm_cases import Array, Case

TURN = Turn(timed=10, untimed=3, pause_s=0.002)
"""The turn of each contender. Its pause lets the threads of the others stop spinning."""


def relax_module(case: Case) -> Any:
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(s, "float32")) for i, s in enumerate(case.shapes)]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(case.build(builder.emit, *params))
        builder.emit_func_output(result)
    return builder.get()


def aligned(shape: Sequence[int]) -> Array:
    return empty_aligned(TensorSpec(tuple(shape), "float32"))


def ours(case: Case, inputs: list[Array], output: Array, threads: int) -> Callable[[], None]:
    kernel = load_kernel(compile_kernel(lower(relax_module(case)["main"]), threads))
    return kernel.bind(inputs, [output])


def default_tvm(case: Case, inputs: list[Array], output: Array, threads: int) -> Callable[[], None]:
    names = (
        "DecomposeOpsForInference",
        "LegalizeOps",
        "AnnotateTIROpPattern",
        "FoldConstant",
        "FuseOps",
        "FuseTIR",
    )
    mod = tvm.transform.Sequential([getattr(relax.transform, n)() for n in names])(relax_module(case))
    target = tvm.target.Target({"kind": "llvm", "mcpu": host_target(1).mcpu, "num-cores": threads})
    vm = relax.VirtualMachine(tvm.compile(mod, target), tvm.cpu())
    tensors = [tvm.runtime.tensor(x) for x in inputs]
    output[...] = vm["main"](*tensors).numpy()
    return lambda: vm["main"](*tensors)


def onnxruntime(case: Case, inputs: list[Array], output: Array, threads: int) -> Callable[[], None]:
    def info(name: str, shape: Sequence[int]) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))

    nodes = case.nodes()
    for n in nodes:
        while n.input and n.input[0] == "":
            del n.input[0]
    names = [f"x{i}" for i in range(len(inputs))]
    graph = helper.make_graph(
        nodes, "g", [info(n, x.shape) for n, x in zip(names, inputs, strict=True)], [info("y", output.shape)]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, x in zip(names, inputs, strict=True):
        binding.bind_input(name, "cpu", 0, np.float32, x.shape, x.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, output.shape, output.ctypes.data)
    return lambda: session.run_with_iobinding(binding)


MAKERS = {"ours": ours, "tvm": default_tvm, "ort": onnxruntime}
"""The builders of the contenders. Each writes to the output array once, and returns the call that is timed."""


def race(case: Case, threads: int, seconds: float) -> dict[str, Any]:
    """The microseconds and errors of our kernel, TVM's and ONNX Runtime's. Raises CollageError for a wrong output."""
    rng = np.random.default_rng(0)
    inputs = [aligned(s) for s in case.shapes]
    for x in inputs:
        x[...] = rng.random(x.shape) + 0.1 if x.shape == (64,) else rng.standard_normal(x.shape)
    expected = case.reference(*(x.astype(np.float64) for x in inputs))
    runs: dict[str, Callable[[], None]] = {}
    errors: dict[str, float] = {}
    for name, maker in MAKERS.items():
        output = aligned(expected.shape)
        output.fill(np.nan)
        runs[name] = maker(case, inputs, output, threads)
        runs[name]()
        errors[name] = float(np.max(np.abs(output - expected)))
        if not errors[name] <= 1e-4:
            raise CollageError(f"{case.name}: {name} is wrong by {errors[name]}")
    times = in_turns(runs, seconds, TURN)
    medians = {name: float(np.median(each)) * 1e6 for name, each in times.items()}
    return {"case": case.name, "us": medians, "max_abs_error": errors}
