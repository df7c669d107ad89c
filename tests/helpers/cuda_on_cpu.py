"""Runs generated CUDA C++ on the CPU, with a stand-in for CUDA's threads, to test what it computes without a GPU."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from collage.backends.tvm_codegen.artifact import BufferSlot, TensorSpec
from collage.backends.tvm_codegen.lower import LoweredKernel
from collage.backends.tvm_cuda_codegen.artifact import Launch
from collage.backends.tvm_cuda_codegen.build import launches_of, sources_of
from collage.backends.tvm_cuda_codegen.source import CudaSource
from collage.kernel.buffers import aligned_copy
from tests.helpers.tvm_functions import poisoned

HEADERS = Path(__file__).parent / "cuda_threads"
COMMAND = ["g++", "-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-ffp-contract=off", f"-I{HEADERS}"]

_BEGIN = 'extern "C"'
"""What kernels begin with, after what all kernels of a kind have in common."""
_KERNEL = re.compile(r"\b(kernel_\d+_kernel\w*)")


@dataclass(frozen=True)
class Prepared:
    """A kernel's launches, whose functions have names that no other kernel's have, and what they take."""

    lowered: LoweredKernel
    launches: tuple[Launch, ...]
    between: tuple[TensorSpec, ...]
    name: str


@dataclass
class CpuThreads:
    """Kernels in one library, which is compiled when the first of them runs."""

    folder: Path
    change: Callable[[str], str] = str
    """What is done to the source before it is compiled."""
    _texts: list[str] = field(default_factory=list)
    _functions: list[str] = field(default_factory=list)
    _library: ctypes.CDLL | None = None

    def add(self, lowered: LoweredKernel, sources: Sequence[CudaSource] | None = None) -> Prepared:
        """Generate the kernel's source if it is not given."""
        name = f"k{len(self._texts)}_"
        sources = sources_of(lowered, "sm_90") if sources is None else sources
        launches, between = launches_of(lowered, sources)
        self._texts.append(_KERNEL.sub(rf"{name}\1", "\n".join(each.text for each in sources)))
        self._functions += [f"{name}{each.function}" for each in launches]
        return Prepared(lowered, launches, between, name)

    def run(self, kernel: Prepared, inputs: Sequence[Any]) -> list[Any]:
        """The outputs of the kernel's launches on these inputs. All that they write is poisoned before."""
        if self._library is None:
            self._library = self._compiled()
        buffers = {
            "param": [aligned_copy(np.asarray(each)) for each in inputs],
            "output": [poisoned(each) for each in kernel.lowered.outputs],
            "intermediate": [poisoned(each) for each in kernel.between],
            "constant": [aligned_copy(each) for each in kernel.lowered.constants],
        }
        for launch in kernel.launches:
            function = getattr(self._library, f"launch_{kernel.name}{launch.function}")
            _launch(function, launch, buffers)
        return buffers["output"]

    def _compiled(self) -> ctypes.CDLL:
        """The library, with a function ``launch_NAME(arguments, grid, block)`` for each kernel."""
        wrappers = "".join(
            f"static void run_{each}(void** given) {{ collage::apply({each}, given); }}\n"
            f'extern "C" void launch_{each}(void** given, const unsigned* grid, const unsigned* threads) {{\n'
            f"  collage::launch(run_{each}, given, grid, threads);\n}}\n"
            for each in dict.fromkeys(self._functions)
        )
        path = self.folder / "kernels.cpp"
        heads: dict[str, None] = {}
        texts = []
        for head, _, rest in (each.partition(_BEGIN) for each in map(self.change, self._texts)):
            texts += ["" if head in heads else head, _BEGIN + rest]  # helpers for float16 are defined once
            heads[head] = None
        path.write_text("\n".join([*texts, wrappers]))
        command = [*COMMAND, "-o", str(path.with_suffix(".so")), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert not done.returncode, done.stderr
        return ctypes.CDLL(str(path.with_suffix(".so")))


def _launch(function: Any, launch: Launch, buffers: Mapping[str, Sequence[Any]]) -> None:
    def address(slot: BufferSlot) -> int:
        return int(buffers[slot.kind][slot.index].ctypes.data)

    given = (ctypes.c_void_p * max(1, len(launch.args)))(*map(address, launch.args))
    function(given, *((ctypes.c_uint * 3)(*each) for each in (launch.grid, launch.block)))
