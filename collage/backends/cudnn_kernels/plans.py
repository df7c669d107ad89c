"""Execution plans: what cuDNN's heuristic offers for a graph, as far as its numbers are good enough."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice, zip_longest

from collage.backends.base import UnsupportedError
from collage.backends.cudnn_kernels.build import build
from collage.backends.cudnn_kernels.enums import Attribute, Heuristic, Kind, Note, Type
from collage.backends.cudnn_kernels.graph import CudnnGraph
from collage.backends.cudnn_kernels.library import CudnnError, Descriptor, handle, number_of_version
from collage.graph.storage import BF16, FP16, TF32

__all__ = [
    "CudnnPlan",
    "described_device",
    "description_of_device",
    "first_plans",
    "load_plan",
    "offered_plans",
]

_MOST_WORKSPACE = 1 << 30
_MOST_CONFIGURATIONS = 64
_MOST_KNOBS = 64
_REMEMBERED = 8
"""Graphs whose plans are remembered: the variants of a candidate follow each other."""
_MODES = Heuristic.A, Heuristic.B, Heuristic.FALLBACK

_TF32 = frozenset({Note.TENSOR_CORE})
_NEVER = frozenset({Note.DOWN_CONVERT_INPUTS, Note.REDUCED_PRECISION_REDUCTION})
"""Notes of engines that round more than the precision allows."""
_TRANSFORMED = frozenset(
    {
        *(Note.FFT, Note.WINOGRAD, Note.WINOGRAD_TILE_4x4),
        *(Note.WINOGRAD_TILE_6x6, Note.WINOGRAD_TILE_13x13, Note.NONDETERMINISTIC),
    }
)
"""Notes of engines that form other sums than the definition, or add in another order in each run, by atomic additions.

The latter are the fastest ones for transposed convolutions of few channels, and PyTorch takes them by default, too.
"""


@dataclass(frozen=True)
class CudnnPlan:
    """An execution plan as bytes, and the workspace that it takes."""

    data: bytes
    workspace_bytes: int


def offered_plans(
    graph: CudnnGraph, precision: str, *, direct: bool, device: Descriptor | None = None
) -> Iterator[CudnnPlan]:
    """The plans of the heuristic whose arithmetic is that of the precision, the best by its estimate first.

    For "" that is float32 without tensor cores, which would round factors to TF32; where nothing is multiplied they
    round nothing. ``direct`` leaves out Winograd's algorithm, Fourier transforms, and sums whose order differs from run
    to run. Modes A and B take turns, what both offer comes once, and the fallback is last.
    Plans that the library cannot finalise are left out, as are those that take more than 1 GiB.

    They are for the GPU that is here, or for the ``device`` that is described (see ``described_device``). Raises
    UnsupportedError where the library does not take the graph.
    """
    if number_of_version() < graph.since:
        raise UnsupportedError(f"cuDNN before version {graph.since} has no such operation")
    whole = build(graph, handle() if device is None else None)
    for configuration in _configurations(whole, device):
        notes = _notes(configuration) - (frozenset() if graph.multiplies else _TF32)
        if not _is_good(notes, precision, direct):
            continue
        plan = Descriptor(Kind.EXECUTION_PLAN)
        if device is None:
            plan.set(Attribute.EXECUTION_PLAN_HANDLE, Type.HANDLE, handle())
        else:
            plan.set(Attribute.EXECUTION_PLAN_DEVICEPROP, Type.BACKEND_DESCRIPTOR, device)
        plan.set(Attribute.EXECUTION_PLAN_ENGINE_CONFIG, Type.BACKEND_DESCRIPTOR, configuration)
        try:
            plan.finalize()
            (room,) = plan.get(Attribute.EXECUTION_PLAN_WORKSPACE_SIZE, Type.INT64, 1)
            if room <= _MOST_WORKSPACE:
                yield CudnnPlan(plan.get_bytes(Attribute.EXECUTION_PLAN_JSON_REPRESENTATION), room)
        except (CudnnError, UnsupportedError):  # the heuristic may offer what does not fit after all
            continue


def first_plans(graph: CudnnGraph, precision: str, number: int, *, direct: bool) -> list[CudnnPlan]:
    """The first ``number`` of ``offered_plans`` for the GPU that is here, or as many as there are.

    A plan may take a tenth of a second to be made, so those of the last graphs are remembered. Raises UnsupportedError
    where the library does not take the graph.
    """
    return _offered(graph, precision, direct).first(number)


@lru_cache(maxsize=_REMEMBERED)
def _offered(graph: CudnnGraph, precision: str, direct: bool) -> _Offered:
    return _Offered(offered_plans(graph, precision, direct=direct))


class _Offered:
    """Plans that are made when they are first asked for, by whichever thread."""

    def __init__(self, coming: Iterator[CudnnPlan]) -> None:
        """Makes the first plan, so that a graph which is refused is not remembered."""
        self._coming = coming
        self._lock = threading.Lock()
        self._found = list(islice(coming, 1))

    def first(self, number: int) -> list[CudnnPlan]:
        with self._lock:
            self._found += islice(self._coming, max(0, number - len(self._found)))
            return self._found[:number]


def described_device(text: bytes) -> Descriptor:
    """A GPU that need not be here, from the JSON that cuDNN has for it. Raises CudnnError."""
    made = Descriptor(Kind.DEVICEPROP)
    made.set_bytes(Attribute.DEVICEPROP_JSON_REPRESENTATION, text)
    return made.finalize()


def description_of_device() -> bytes:
    """The GPU that is here, as JSON for ``described_device``. Raises CudnnError."""
    made = Descriptor(Kind.DEVICEPROP)
    made.set(Attribute.DEVICEPROP_HANDLE, Type.HANDLE, handle())
    return made.finalize().get_bytes(Attribute.DEVICEPROP_JSON_REPRESENTATION)


def load_plan(data: bytes) -> Descriptor:
    """The execution plan of these bytes. Raises CudnnError, as for the bytes of another version of the library."""
    plan = Descriptor(Kind.EXECUTION_PLAN)
    plan.set(Attribute.EXECUTION_PLAN_HANDLE, Type.HANDLE, handle())
    plan.set_bytes(Attribute.EXECUTION_PLAN_JSON_REPRESENTATION, data)
    return plan.finalize()


def _is_good(notes: frozenset[int], precision: str, direct: bool) -> bool:
    if notes & _NEVER or (direct and notes & _TRANSFORMED):
        return False
    if precision in (BF16, FP16):
        return True
    return bool(notes & _TF32) == (precision == TF32)


def _configurations(graph: Descriptor, device: Descriptor | None) -> Iterator[Descriptor]:
    """The configurations of engines that the heuristic's modes offer, each once."""
    seen = set()
    first, second, last = (_asked(graph, mode, device) for mode in _MODES)
    for each in chain.from_iterable((*zip_longest(first, second), last)):
        if each is None or (identity := _identity(each)) in seen:
            continue
        seen.add(identity)
        yield each


def _asked(graph: Descriptor, mode: Heuristic, device: Descriptor | None) -> list[Descriptor]:
    heuristic = Descriptor(Kind.ENGINEHEUR)
    heuristic.set(Attribute.ENGINEHEUR_OPERATION_GRAPH, Type.BACKEND_DESCRIPTOR, graph)
    heuristic.set(Attribute.ENGINEHEUR_MODE, Type.HEUR_MODE, mode)
    if device is not None:
        heuristic.set(Attribute.ENGINEHEUR_DEVICEPROP, Type.BACKEND_DESCRIPTOR, device)
    try:
        heuristic.finalize()
        count = heuristic.count(Attribute.ENGINEHEUR_RESULTS, Type.BACKEND_DESCRIPTOR)
    except UnsupportedError:
        return []
    most = min(count, _MOST_CONFIGURATIONS)
    return heuristic.get_descriptors(Attribute.ENGINEHEUR_RESULTS, Kind.ENGINECFG, most) if most else []


def _engine(configuration: Descriptor) -> Descriptor:
    (found,) = configuration.get_descriptors(Attribute.ENGINECFG_ENGINE, Kind.ENGINE, 1)
    return found


def _notes(configuration: Descriptor) -> frozenset[int]:
    """The notes on the numbers of a configuration's engine."""
    most = len(Note) + 8  # later versions may have more
    return frozenset(_engine(configuration).get(Attribute.ENGINE_NUMERICAL_NOTE, Type.NUMERICAL_NOTE, most))


def _identity(configuration: Descriptor) -> tuple[int, tuple[tuple[int, int], ...]]:
    """The number of the engine and its knobs, by which configurations are told apart."""
    (number,) = _engine(configuration).get(Attribute.ENGINE_GLOBAL_INDEX, Type.INT64, 1)
    knobs = configuration.get_descriptors(Attribute.ENGINECFG_KNOB_CHOICES, Kind.KNOB_CHOICE, _MOST_KNOBS)
    chosen = [
        (
            each.get(Attribute.KNOB_CHOICE_KNOB_TYPE, Type.KNOB_TYPE, 1)[0],
            each.get(Attribute.KNOB_CHOICE_KNOB_VALUE, Type.INT64, 1)[0],
        )
        for each in knobs
    ]
    return number, tuple(sorted(chosen))
