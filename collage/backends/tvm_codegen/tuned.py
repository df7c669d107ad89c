"""Schedules that tuning found: kept as text, and applied again to the PrimFuncs of a fresh lowering."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from collage.backends.tvm_codegen.arithmetic import vector_math
from collage.backends.tvm_codegen.keep_nan import keep_nan
from collage.backends.tvm_codegen.lower import first_line
from collage.backends.tvm_codegen.traces import check_trace


class RecordError(ValueError):
    """A text that is no record, does more than schedule, or was made for other operators."""


def format_record(traces: Mapping[str, Any]) -> str:
    """The record of a trace for each tuned PrimFunc, or None if our own schedule was the fastest."""
    return json.dumps(traces, separators=(",", ":")) if traces else ""


def plain_trace(trace: Any) -> Any:
    """A trace of TVM's as JSON values. Raises `RecordError` if `parse_record` would not take it."""
    found = json.loads(json.dumps(trace.simplified(False).as_json(), default=_plain))
    _check(found)
    return found


def _plain(number: Any) -> int | float:
    return int(number) if isinstance(number, tirx.IntImm) else float(number)


def parse_record(text: str) -> dict[str, Any]:
    """The traces of a record by PrimFunc. Raises `RecordError` for other text, and for traces that do anything else."""
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError) as error:
        raise RecordError(f"no JSON: {error}") from error
    if not isinstance(found, dict):
        raise RecordError("no JSON object")
    for trace in found.values():
        if trace is not None:
            _check(trace)
    return found


def _check(trace: Any) -> None:
    try:
        check_trace(trace)
    except (ValueError, RecursionError) as error:
        raise RecordError(str(error)) from error


def tunable_module(func: Any) -> Any:
    """The module that MetaSchedule tunes, and that its traces apply to."""
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main").with_attr("tirx.noalias", True)})


def replay(func: Any, trace: Any, threads: int) -> Any:
    """Schedule a PrimFunc for the CPU as the trace says. Raises `RecordError` like `scheduled`."""
    return postprocessed(scheduled(func, trace), threads)


def scheduled(func: Any, trace: Any) -> Any:
    """Schedule a PrimFunc as the trace says. Raises `RecordError` if it was made for other operators."""
    module = tunable_module(func)  # TVM may change the nodes of the function that it is made of
    schedule = s_tir.Schedule(module)
    try:
        s_tir.Trace.apply_json_to_schedule(trace, schedule)
    except Exception as error:  # TVM's errors share no base class but Exception
        raise RecordError(f"it does not fit: {first_line(error)}") from error
    return schedule.mod["main"]


def postprocessed(func: Any, threads: int) -> Any:
    """The function with arithmetic that vectorises, and without a thread pool for one thread."""
    serial = func if threads > 1 else tvm_ffi.structural_map(func, (tirx.For, _serial), order="post")
    return vector_math(keep_nan(serial))


def _serial(loop: Any) -> Any:
    if loop.kind != tirx.ForKind.PARALLEL:
        return loop
    return tirx.For(
        loop.loop_var,
        loop.min,
        loop.extent,
        tirx.ForKind.SERIAL,
        loop.body,
        None,
        loop.annotations,
        loop.step,
    )
