"""A region: the part of the model that one kernel runs, with its position in the schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from collage.core.typed import typed

TRANSFORM = ("layout",)
"""``ops`` of a layout transform."""


@dataclass(frozen=True)
class CandidateId:
    """The identity of a candidate of a model: its nodes, its backend and what it is built for.

    ``layout``, ``split`` and ``precision`` are those of the variant, and ``threads`` are the threads that it may use.
    An ``original`` candidate is the model as its author wrote it, instead of all nodes, with a ``profile`` of the
    backend.
    """

    nodes: tuple[int, ...]
    backend: str
    layout: str
    split: str
    threads: int
    original: bool
    profile: str
    precision: str = ""


@dataclass(frozen=True)
class Region:
    """The part of the model that one kernel runs: ``nodes`` are ids, ``sources`` names of the ONNX nodes of these.

    ``inputs`` and ``outputs`` are buffer ids in the order of the kernel's parameters: a plain value's own id, or a new
    one for each other storage of it. ``layout`` has the storages of inputs and outputs as text, and ``split`` says how
    the work is divided. The kernel may use ``threads`` threads and runs on ``stream``; a kernel on a GPU has a
    stream from 1 on there, or 0 where it runs by itself. ``cost_us`` is its measured median in microseconds, and
    ``noise_us`` the half-width of the 95 % interval. ``in_place`` are the positions of
    inputs that the kernel may overwrite with its one output. ``exclusive`` and ``profile`` are those of BuildOptions,
    and an ``original`` region is the model as its author wrote it.

    A ``finite_only`` kernel is not right on NaN and infinities (``Measurement.finite_only``). ``scans`` are buffers
    that are scanned right before the launch; if a scan finds something, ONNX Runtime answers the call.
    ``reassociates`` is ``Backend.reassociates``, and ``precision`` that of the variant. ``error``
    is what the kernel adds to the error of the outputs, by the search's prediction, as a share of their scale.
    """

    backend: str
    ops: tuple[str, ...]
    nodes: tuple[int, ...]
    sources: tuple[str, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    layout: str = "plain"
    split: str = ""
    threads: int = 1
    stream: int = 0
    cost_us: float = 0.0
    noise_us: float = 0.0
    exclusive: bool = False
    in_place: tuple[int, ...] = ()
    profile: str = ""
    original: bool = False
    finite_only: bool = False
    scans: tuple[int, ...] = ()
    reassociates: bool = False
    precision: str = ""
    error: float = 0.0

    @property
    def is_transform(self) -> bool:
        """Whether it is a layout transform, and so none of the model's operators."""
        return not self.nodes and self.ops == TRANSFORM

    @property
    def candidate(self) -> CandidateId:
        """The identity of the candidate that was chosen."""
        about = self.layout, self.split, self.threads, self.original, self.profile, self.precision
        return CandidateId(self.nodes, self.backend, *about)

    def to_json(self) -> dict[str, Any]:
        """Plain values for the module file. A reduced precision is among them, with its error, and no other one is."""
        found = {name: getattr(self, name) for name in self.__dataclass_fields__}
        if not self.precision:
            del found["precision"], found["error"]
        return found

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Region:
        """The inverse of ``to_json``. Raises ValueError for anything else."""
        return typed(Region, data)

    def summary(self) -> dict[str, Any]:
        """The region in the form of the JSON contract of ``show --json``."""
        return {
            "backend": self.backend,
            "ops": list(self.ops),
            "nodes": list(self.sources),
            "layout": self.layout,
            "threads": self.threads,
            "stream": self.stream,
            "cost_us": round(self.cost_us, 3),
            "finite_only": self.finite_only,
            "scans": len(self.scans),
            "reassociates": self.reassociates,
            **({"precision": self.precision, "error": self.error} if self.precision else {}),
        }
