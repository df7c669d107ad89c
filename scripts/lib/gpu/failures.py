"""What a GPU does where something fails: a kernel that writes where it must not, and a process that is killed."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from collage.backends.cuda_kernels.launch import Prepared, StreamLaunches, load_code
from collage.backends.tvm_cuda import TvmCuda
from collage.backends.tvm_cuda_codegen.nvrtc import compile_cubin
from collage.core.cuda import gpu
from collage.core.cuda_driver import driver
from collage.graph.dataflow import Array
from collage.kernel.kernel import Call, Kernel
from collage.kernel.options import BuildOptions
from scripts.lib import ROOT

if TYPE_CHECKING:
    from collage.kernel.frames import Artifact

_NOWHERE = 8
"""An address that belongs to nobody."""
_SOURCE = 'extern "C" __global__ void write_nowhere(unsigned long long at) { *(volatile unsigned*)at = blockIdx.x; }'
_MOST_MIB = 4096
_ENDS_WITHIN_S = 10.0
_OWN_BYTES = 1 << 20
"""What the asking process may have taken itself meanwhile; the driver took 64 KiB on an H200."""

_TAKES_MEMORY = """
import sys, time
from collage.core.cuda_driver import driver
from collage.graph.storage import CUDA
from collage.kernel.device_array import empty_on
taken = empty_on(CUDA, (int(sys.argv[1]) << 20,), "uint8")
print(driver().free_bytes(), flush=True)
time.sleep(600)
"""


class Faulty(TvmCuda):
    """Builds what TVM builds, and launches a kernel that writes where it must not."""

    name = "faulty"

    def load(self, artifact: Artifact, options: BuildOptions) -> Kernel:
        """The kernel that writes nowhere, whatever was built."""
        return _FaultyKernel()


class _FaultyKernel(Kernel):
    own_threads = True

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        code = load_code(compile_cubin(_SOURCE, gpu().architecture))
        launch = Prepared(code, code.function("write_nowhere"), (1, 1, 1), (32, 1, 1), (_NOWHERE,))
        return StreamLaunches([launch], (inputs, outputs))


def faulty_kernel(model: onnx.ModelProto, inputs: Sequence[Array]) -> dict[str, Any]:
    """A compile that tries kernels of ``Faulty`` ends with a right module, and has told what became of them."""
    import onnxruntime

    import collage
    from scripts.lib.gpu.contenders import largest_error

    names = ("tvm_cuda", "cublas", Faulty.name)
    registry = collage.builtin_registry(with_entry_points=False)
    registry.register(Faulty())
    with tempfile.TemporaryDirectory() as folder:
        db = Path(folder) / "check.sqlite"
        module = collage.compile(
            model, db=db, registry=registry, backends=names, device="cuda", quick=True, progress=False
        )
        with closing(sqlite3.connect(db)) as database:
            found = list(database.execute("SELECT backend, rejection, message, median_us FROM kernels"))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = dict(zip([each.name for each in session.get_inputs()], inputs, strict=True))
    error = largest_error([*module.run(feeds).values()], session.run(None, feeds))
    faulty = [row for row in found if row[0] == Faulty.name]
    assert faulty, "no kernel of the faulty backend was tried"
    assert all(kind == "crashed" for _, kind, *_ in faulty), faulty
    others = [row for row in found if row[0] != Faulty.name]
    assert all("ILLEGAL" not in (message or "") for *_, message, _ in others), others
    assert any(us is not None for *_, us in others), others
    assert error < 1e-4, error
    return {"error": error, "crashed": len(faulty), "message": str(faulty[0][2])[:300]}


def killed_process() -> dict[str, Any]:
    """A process that is killed leaves none of the memory taken that it had."""
    gpu_ = driver()
    gpu_.enter()
    before = gpu_.free_bytes()
    wanted_mib = min(_MOST_MIB, before >> 22)
    command = [sys.executable, "-c", _TAKES_MEMORY, str(wanted_mib)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        told = child.stdout.readline()
        during = gpu_.free_bytes()
        child.send_signal(signal.SIGKILL)
    assert told.strip().isdigit(), f"the process has said {told!r}"
    start = time.monotonic()
    while (after := gpu_.free_bytes()) < before - _OWN_BYTES and time.monotonic() - start < _ENDS_WITHIN_S:
        time.sleep(0.05)
    assert before - during >= wanted_mib << 20, (before, during)
    assert after >= before - _OWN_BYTES, (before, after)
    return {
        "taken_mib": (before - during) >> 20,
        "free again after s": round(time.monotonic() - start, 2),
        "free_mib": after >> 20,
    }
