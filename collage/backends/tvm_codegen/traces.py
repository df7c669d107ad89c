"""What a schedule's trace may hold, since it may come from somebody else's database.

TVM replays whatever a trace says. An annotation may bring LLVM IR along (``pragma_import_llvm``), which is compiled
into the kernel; strings may be whole objects of TVM's. So a trace is taken only if it holds nothing but what the search
for schedules writes: loops split, ordered, fused or made parallel, and values kept in buffers, with numbers of a
sensible size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Check: TypeAlias = Callable[[list[Any], list[Any]], None]
"""Takes the inputs and the attributes of an instruction, and raises ValueError."""

_MOST_INSTRUCTIONS = 10_000
_LARGEST = 1 << 20
_VARIABLE = re.compile(r"[blv][0-9]{1,6}")
_NAME = re.compile(r"[A-Za-z0-9_.]{1,200}")
_KEYS = frozenset(
    [
        *(f"meta_schedule.{each}" for each in ("parallel", "vectorize", "unroll_explicit", "unroll_implicit")),
        *("meta_schedule.tiling_structure", "meta_schedule.random_compute_producer"),
        *("pragma_auto_unroll_max_step", "pragma_unroll_explicit"),
    ]
)
_TILING = re.compile(r'"[SR]{1,20}"')


def check_trace(trace: Any) -> None:
    """Raise ValueError unless the trace, as of ``Trace.as_json``, is one that can do nothing but schedule."""
    instructions, decisions = _list_of(trace, 2, "a trace")
    for each in _list(instructions, "instructions"):
        kind, inputs, attributes, outputs = _list_of(each, 4, "an instruction")
        if kind not in _KINDS:
            raise ValueError(f"no instruction of a schedule: {kind!r:.80}")
        _check_outputs(outputs)
        _KINDS[kind](_list(inputs, "inputs"), _list(attributes, "attributes"))
    for each in _list(decisions, "decisions"):
        index, decision = _list_of(each, 2, "a decision")
        if not _is_int(index) or not 0 <= index < len(instructions):
            raise ValueError(f"a decision of no instruction: {index!r:.80}")
        if instructions[index][0] not in _DECIDED:
            raise ValueError(f"{instructions[index][0]} decides nothing")
        least = 1 if isinstance(decision, list) else -2
        for number in decision if isinstance(decision, list) else [decision]:
            _check_int(number, least)


def _plain(inputs: list[Any], attributes: list[Any]) -> None:
    """Raise ValueError unless there are variables and numbers only."""
    _check_inputs(inputs)
    _check_numbers(attributes)


def _block_of(inputs: list[Any], attributes: list[Any]) -> None:
    if inputs or len(attributes) != 2 or not all(isinstance(a, str) and _NAME.fullmatch(a) for a in attributes):
        raise ValueError(f"no name of a block: {attributes!r:.80}")


def _cache(inputs: list[Any], attributes: list[Any]) -> None:
    _check_inputs(inputs)
    if len(attributes) != 2 or attributes[1] != "global":
        raise ValueError(f"memory that CPUs do not have: {attributes!r:.80}")
    _check_int(attributes[0], 0)


def _annotate(inputs: list[Any], attributes: list[Any]) -> None:
    _check_key(attributes)
    if len(inputs) != 2:
        raise ValueError("an annotation without a value")
    tiling = attributes[0] == "meta_schedule.tiling_structure"
    if tiling and isinstance(inputs[1], str) and _TILING.fullmatch(inputs[1]):
        inputs = inputs[:1]
    _check_inputs(inputs)


def _unannotate(inputs: list[Any], attributes: list[Any]) -> None:
    _check_key(attributes)
    _check_inputs(inputs)


def _check_key(attributes: list[Any]) -> None:
    if len(attributes) != 1 or attributes[0] not in _KEYS:
        raise ValueError(f"no annotation of a schedule: {attributes!r:.80}")


def _check_inputs(inputs: list[Any]) -> None:
    for each in inputs:
        if isinstance(each, list):
            _check_inputs(each)
        elif isinstance(each, str):
            if each != "None" and not _VARIABLE.fullmatch(each):
                raise ValueError(f"no variable: {each!r:.80}")
        else:
            _check_int(each, -1)


def _check_outputs(outputs: Any) -> None:
    for each in _list(outputs, "outputs"):
        if not isinstance(each, str) or not _VARIABLE.fullmatch(each):
            raise ValueError(f"no variable: {each!r:.80}")


def _check_numbers(attributes: list[Any]) -> None:
    for each in attributes:
        if isinstance(each, list):
            _check_numbers(each)
        elif isinstance(each, float):
            if not 0 <= each <= 1:  # probabilities
                raise ValueError(f"no probability: {each}")
        elif not isinstance(each, bool):
            _check_int(each, -2)


def _check_int(number: Any, least: int) -> None:
    if not _is_int(number) or not least <= number <= _LARGEST:
        raise ValueError(f"no number of a schedule: {number!r:.80}")


def _is_int(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def _list_of(value: Any, length: int, what: str) -> list[Any]:
    found = _list(value, what)
    if len(found) != length:
        raise ValueError(f"{what} has {length} parts, not {len(found)}")
    return found


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > _MOST_INSTRUCTIONS:
        raise ValueError(f"no list of {what}")
    return value


_KINDS: Mapping[str, Check] = {
    **dict.fromkeys(
        (
            "AddUnitLoop ComputeAt ComputeInline DecomposeReduction EnterPostproc Fuse GetChildBlocks GetConsumers "
            "GetLoops GetProducers Parallel Reorder ReverseComputeAt ReverseComputeInline RFactor SampleCategorical "
            "SampleComputeLocation SamplePerfectTile Split Unroll Vectorize"
        ).split(),
        _plain,
    ),
    "GetSBlock": _block_of,
    "CacheWrite": _cache,
    "Annotate": _annotate,
    "Unannotate": _unannotate,
}
_DECIDED = frozenset(["SampleCategorical", "SampleComputeLocation", "SamplePerfectTile"])
