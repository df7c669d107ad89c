"""What the kit finds, and the table of its checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from collage.errors import unknown_names

CHECKS: Mapping[str, str] = {
    "registration": "the name, the kind, methods of other roles, storage formats, and whether it can be pickled",
    "available": "available() raises, gives another type, or takes more than three seconds",
    "rules": "sources() or a rule raises, names an operator as ONNX does, or takes nothing at all",
    "claims": "variants() or codegen() refuse all that a rule claims, raise other errors, or give no bytes",
    "raises": "load(), bind() or the call raises",
    "crash": "the process ends",
    "hang": "a kernel takes longer than the time limit",
    "numbers": "outputs differ from ONNX Runtime's on usual inputs, outliers, equal numbers or uneven channels",
    "formats": "outputs are wrong in one variant and right in another one, or a layout transform is wrong",
    "threads": "outputs are wrong with several threads and right with one",
    "hostile": "outputs are wrong on NaN, infinities or huge numbers, although the backend says keeps_nan",
    "unwritten": "elements of an output keep what they held before the call",
    "outside": "the kernel writes before or after its buffers",
    "inputs": "the kernel writes to its inputs, also if it restores them, or in_place() promises what does not hold",
    "state": "a call changes a later one, or the call of another kernel",
    "concurrent": "calls in two threads at once disturb each other",
    "load": "the artifact gives no right kernel in another process",
    "leak": "memory, files or threads grow with calls or loads",
    "reproducible": "codegen gives other bytes for the same subgraph (a note)",
    "time": "the times of a kernel spread widely (a note)",
}
"""Each check, and what it finds."""

NOTES = frozenset(("reproducible", "time"))
"""Checks whose findings are no defects."""


@dataclass(frozen=True)
class Where:
    """The kernel that something was found in.

    ``nodes`` are its ids in the imported model, ``inputs`` and ``outputs`` types such as ``float32[2x3]``, and
    ``attributes`` those of its operators.
    """

    model: str
    operators: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: str
    variant: str
    threads: int
    nodes: tuple[int, ...] = ()

    def __str__(self) -> str:
        sides = f"{', '.join(self.inputs)} -> {', '.join(self.outputs)}"
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return "; ".join(filter(None, (f"{self.operators} {sides}", self.attributes, self.variant, threads)))


@dataclass(frozen=True)
class Finding:
    """Something wrong with a backend.

    ``kind`` is the name of the check, ``what`` one sentence, and ``script`` a Python program that checks the same
    again: it prints the finding, and ends with status 1 as long as it is there. ``alike`` is the number of other
    kernels of the same operators with a finding of this kind. A finding that is no ``defect`` is a note.
    """

    kind: str
    what: str
    where: Where | None = None
    script: str = field(default="", repr=False)
    alike: int = 0

    @property
    def defect(self) -> bool:
        """Whether the backend breaks its contract."""
        return self.kind not in NOTES

    def __str__(self) -> str:
        place = f" [{self.where}]" if self.where else ""
        more = f" (and {self.alike} more)" if self.alike else ""
        return f"{self.kind}: {self.what}{place}{more}"


@dataclass(frozen=True)
class Tally:
    """The number of kernels that a backend claims, and of those that were checked: the others it refused."""

    claimed: int = 0
    checked: int = 0


class Findings(list[Finding]):
    """What is wrong with a backend, and what was tried.

    ``kernels`` counts all kernels, and ``by_dtype`` has those of each dtype of the models' inputs and outputs and of
    the kernels'. A kernel of several dtypes counts for each. Kernels for each number of threads count apart.
    """

    def __init__(self, found: Iterable[Finding], kernels: Tally, by_dtype: Mapping[str, Tally]) -> None:
        super().__init__(found)
        self.kernels, self.by_dtype = kernels, by_dtype


def checked_names(only: Iterable[str] | None) -> frozenset[str]:
    """The checks that are asked for, by default all that find defects. Raises UsageError for unknown names."""
    wanted = CHECKS.keys() - NOTES if only is None else frozenset(only)
    if unknown := wanted - CHECKS.keys():
        raise unknown_names("check", unknown, CHECKS)
    return frozenset(wanted)
