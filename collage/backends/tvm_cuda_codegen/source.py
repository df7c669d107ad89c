"""CUDA C++ of scheduled PrimFuncs, and how the kernels in it are launched.

TVM makes a host function that launches the kernels and allocates what lies between them. Nothing of it is used: grids
and blocks are read off the kernels, and buffers between kernels become parameters that the memory of the artifact is
for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.tirx.build import codegen_build, split_host_device_mods

from collage.backends.tvm_codegen.artifact import TensorSpec
from collage.backends.tvm_codegen.prim_blocks import collect, shape_of
from collage.backends.tvm_cuda_codegen.artifact import Extent, is_grid
from collage.backends.tvm_cuda_codegen.source_only import source_only
from collage.backends.tvm_cuda_codegen.special_values import keep_special_values

__all__ = ["CudaKernel", "CudaSource", "cuda_source"]

_AXES = {f"{what}Idx.{axis}": (what, at) for what in ("block", "thread") for at, axis in enumerate("xyz")}


@dataclass(frozen=True)
class CudaKernel:
    """A function of the source: its name, the blocks of its grid, the threads of a block, and what parameters it takes.

    ``takes`` are positions among the PrimFunc's parameters; those after the last of them are buffers between kernels.
    """

    name: str
    grid: Extent
    block: Extent
    takes: tuple[int, ...]


@dataclass(frozen=True)
class CudaSource:
    """The source of one PrimFunc, its kernels in the order in which they run, and the buffers between them."""

    text: str
    kernels: tuple[CudaKernel, ...]
    between: tuple[TensorSpec, ...]


def cuda_source(func: Any, name: str, target: Any) -> CudaSource:
    """The source of a scheduled PrimFunc, whose kernels' names begin with ``name``.

    Raises RuntimeError or ValueError if TVM refuses the schedule, and ValueError for more blocks than a grid has.
    Raises ValueError, too, if the schedule leaves loops to the host: DLight's rule for transposes schedules the
    transpose alone.
    """
    body = func.body.block.body
    for each in body.seq if isinstance(body, tirx.SeqStmt) else (body,):
        if all(loop.thread_binding is None for loop in collect(each, tirx.For)):
            raise ValueError("the schedule leaves loops to the host")
    func, between = _with_all_buffers(func)
    func = func.with_attrs({"global_symbol": name, "tirx.noalias": True})
    module = tirx.transform.BindTarget(target)(tvm.IRModule({name: func}))
    pipeline, _, finish = tirx.get_default_tir_pipeline(target)
    host, devices = split_host_device_mods(pipeline(module))
    (device,) = devices.values()
    device = keep_special_values(func, finish()(device))
    with source_only():
        text = codegen_build(device, target).inspect_source("cuda")
    kernels = {str(var.name_hint): _kernel(str(var.name_hint), each) for var, each in device.functions.items()}
    for each in kernels.values():
        if not is_grid(each.grid):
            raise ValueError(f"{each.name} needs a grid of {'x'.join(map(str, each.grid))} blocks")
    return CudaSource(text, tuple(kernels[each] for each in _launched(host, kernels)), between)


def _with_all_buffers(func: Any) -> tuple[Any, tuple[TensorSpec, ...]]:
    """The function with the buffers that it allocates in global memory as further parameters, and parameters named."""
    root = func.body.block
    kept = [each for each in root.alloc_buffers if each.ty.storage_scope not in ("", "global")]
    between = [each for each in root.alloc_buffers if each.ty.storage_scope in ("", "global")]
    old = [*func.params, *between]
    new = [tirx.decl_buffer(each.shape, each.dtype, f"p{number}") for number, each in enumerate(old)]

    def renamed(var: Any) -> Any:
        return next((to for was, to in zip(old, new, strict=True) if var.same_as(was)), var)

    body = tvm_ffi.structural_map(root.body, (tvm.ir.Var, renamed), order="post")
    block = s_tir.SBlock([], [], [], root.name_hint, body, None, kept, [], root.annotations)
    made = tirx.PrimFunc(new, s_tir.SBlockRealize([], True, block), func.ret_type, func.attrs)
    return made, tuple(TensorSpec(shape_of(each), str(each.dtype)) for each in between)


def _kernel(name: str, func: Any) -> CudaKernel:
    extents = {"block": [1, 1, 1], "thread": [1, 1, 1]}
    for attribute in collect(func.body, tirx.AttrStmt):
        if attribute.attr_key == "thread_extent" and str(attribute.node.thread_tag) in _AXES:
            what, at = _AXES[str(attribute.node.thread_tag)]
            extents[what][at] = int(attribute.value)
    takes = tuple(int(re.sub(r"^p(\d+).*", r"\1", str(each.name))) for each in func.params)
    return CudaKernel(name, _three(extents["block"]), _three(extents["thread"]), takes)


def _three(extents: Sequence[int]) -> Extent:
    x, y, z = extents
    return x, y, z


def _launched(host: Any, kernels: Mapping[str, CudaKernel]) -> list[str]:
    """The names of the kernels in the order in which the host function launches them, each once."""
    found = []
    for func in host.functions.values():
        found += [str(each.value) for each in collect(func.body, tvm.ir.StringImm) if str(each.value) in kernels]
    if sorted(found) != sorted(kernels):
        raise ValueError(f"TVM's host function launches {found}, and there are {sorted(kernels)}")
    return found
