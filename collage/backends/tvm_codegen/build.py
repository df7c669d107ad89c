"""The way of lowered PrimFuncs to bytes: they are scheduled, compiled for this CPU, and kept as an image."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import tvm
from tvm_ffi import StructuralKey

from collage.backends.tvm_codegen.arithmetic import rounds_quotients
from collage.backends.tvm_codegen.artifact import TvmArtifact, pack
from collage.backends.tvm_codegen.contraction import UnscheduledError, compute_bound_reason
from collage.backends.tvm_codegen.host import host_cpu, host_target
from collage.backends.tvm_codegen.link import PREFIX, linkable
from collage.backends.tvm_codegen.lower import LoweredKernel, first_line
from collage.backends.tvm_codegen.mapped import Image, ImageError, image_of, is_known, usable_sets
from collage.backends.tvm_codegen.schedule import default_schedule, schedule
from collage.backends.tvm_codegen.tuned import parse_record, replay
from collage.core.temporary import TemporaryFolder
from collage.native.library import core_problem

logger = logging.getLogger(__name__)


def compile_kernel(lowered: LoweredKernel, threads: int, record: str = "", *, in_order: bool = False) -> bytes:
    """Schedule and compile for this CPU. The bytes hold everything `load_kernel` needs.

    With ``in_order`` no arithmetic is reordered, as is needed if another kernel rounds a quotient of this one.
    `record` is what `tune` found for it. With `threads` 1 the code has no parallel loops; with more,
    big nests split over all of the threads it runs on. Raises `UnscheduledError` for convolutions and matrix
    products that the record does not hold, and `RecordError` for a record that is none of this kernel.
    """
    if threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")
    funcs = tuple((name, StructuralKey(func)) for name, func in lowered.funcs.items())
    code = _code(funcs, threads, record, not core_problem(), in_order)
    needs = tuple(sorted(usable_sets())) if isinstance(code, Image) else ()
    return pack(
        TvmArtifact(
            host_cpu(), threads, lowered.calls, lowered.params, lowered.outputs, lowered.intermediates,
            lowered.constants, code, needs,
        )
    )  # fmt: skip


@lru_cache(maxsize=256)
def _code(
    keys: tuple[tuple[str, StructuralKey], ...], threads: int, record: str, mapped: bool, in_order: bool
) -> Image | bytes:
    """The functions' code, scheduled and compiled: an image if it may be `mapped`, else LLVM IR.

    ``in_order`` tells that quotients are rounded elsewhere, so that no arithmetic is reordered.

    Equal functions have equal code, whatever constants they are called with. A network has the same region many times,
    each with weights of its own, and LLVM takes a tenth of a second for it.
    """
    funcs = {name: key.key for name, key in keys}
    traces = {name: trace for name, trace in parse_record(record).items() if trace is not None}
    ours = {name: func for name, func in funcs.items() if name not in traces}
    for func in ours.values():
        if (reason := compute_bound_reason(func)) is not None:
            raise UnscheduledError(reason)
    target = host_target(threads, in_order=in_order or any(map(rounds_quotients, funcs.values())))
    tuned = {name: replay(funcs[name], trace, threads) for name, trace in traces.items()}
    try:
        module = _build({n: schedule(f, threads) for n, f in ours.items()} | tuned, target)
    except (RuntimeError, ValueError) as error:
        logger.warning("scheduled code does not compile, using the default schedule: %s", first_line(error))
        module = _build({n: default_schedule(f, threads) for n, f in ours.items()} | tuned, target)
    return _written(module, list(funcs), mapped)


def _written(module: Any, names: list[str], mapped: bool) -> Image | bytes:
    """The module's image, or its LLVM IR if there is none: on other CPUs, without the native core."""
    with TemporaryFolder("tvm") as folder:
        if mapped:
            path = folder / "kernel.o"
            module.write_to_file(str(path), "o")
            try:
                return image_of(path.read_bytes(), PREFIX, names, is_known)
            except ImageError as error:
                logger.info("no image, which takes longer to load: %s", error)
        path = folder / "kernel.ll"
        module.write_to_file(str(path), "ll")
        return linkable(_without_addresses(path.read_bytes()), names)


def _without_addresses(code: bytes) -> bytes:
    """LLVM IR in which the metadata names buffers by their order, not by where the compiler had them in memory.

    Equal kernels then have equal code, which is stored and loaded once.
    """
    names: dict[bytes, int] = {}
    return re.sub(rb'!"0x[0-9a-f]+"', lambda found: b'!"buffer %d"' % names.setdefault(found[0], len(names)), code)


def _build(funcs: Mapping[str, Any], target: Any) -> Any:
    mod = tvm.IRModule({n: f.with_attr("global_symbol", n) for n, f in funcs.items()})
    return tvm.tirx.build(mod, target)
