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

__all__ = ["finished", "format_record", "parse_record", "replay", "tunable_module"]


def format_record(traces: Mapping[str, Any]) -> str:
    """The record of a trace for each tuned PrimFunc, or None where our own schedule was the fastest."""
    return json.dumps(traces, separators=(",", ":"), default=_plain) if traces else ""


def _plain(number: Any) -> int | float:
    return int(number) if isinstance(number, tirx.IntImm) else float(number)


def parse_record(text: str) -> dict[str, Any]:
    """The traces of a record by PrimFunc. Raises `ValueError` for other text."""
    found = json.loads(text) if text else {}
    if not isinstance(found, dict):
        raise ValueError("not a record of tuned schedules")
    return found


def tunable_module(func: Any) -> Any:
    """The module that MetaSchedule tunes, and that its traces apply to."""
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main").with_attr("tirx.noalias", True)})


def replay(func: Any, trace: Any, threads: int) -> Any:
    """Schedule a PrimFunc as the trace says; it must be lowered from the same operators as the tuned one."""
    schedule = s_tir.Schedule(tunable_module(func))
    s_tir.Trace.apply_json_to_schedule(trace, schedule)
    return finished(schedule.mod["main"], threads)


def finished(func: Any, threads: int) -> Any:
    """What is done after MetaSchedule: arithmetic that vectorises, no thread pool for one thread."""
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
