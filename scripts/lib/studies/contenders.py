"""The contenders against Collage: engines that `collage bench` knows, and PyTorch where it is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from collage.bench.engines import OURS
from collage.bench.worker import ENGINES
from collage.errors import CollageError, unknown_names

PYTORCH: Mapping[str, str] = {
    "pytorch": "scripts.lib.workloads.torch_contenders:eager",
    "inductor": "scripts.lib.workloads.torch_contenders:inductor",
    "inductor_max_autotune": "scripts.lib.workloads.torch_contenders:inductor_max_autotune",
}
UNASKED = ("pytorch", "inductor")
KNOWN = (*PYTORCH, *(name for name in ENGINES if name != OURS))
NO_TORCH = "torch is not installed; pip install '.[models]'"


@dataclass(frozen=True)
class Contenders:
    """Arguments of ``collage.bench.engines.bench``. ``note`` says which contender is missing, and how to install it."""

    engines: tuple[str, ...] | None
    others: Mapping[str, str]
    note: str = ""


def choose(names: Sequence[str] | None, *, torch: bool | None = None) -> Contenders:
    """The contenders of these names; None stands for all that are installed. ``torch`` tells whether PyTorch is.

    Raises UsageError for unknown names and CollageError for PyTorch's where there is no torch.
    """
    torch = find_spec("torch") is not None if torch is None else torch
    if names is None:
        others = {name: PYTORCH[name] for name in UNASKED} if torch else {}
        return Contenders(None, others, "" if torch else f"no PyTorch contenders: {NO_TORCH}")
    unknown = [name for name in names if name not in KNOWN]
    if unknown:
        raise unknown_names("contender", unknown, KNOWN)
    others = {name: PYTORCH[name] for name in names if name in PYTORCH}
    if others and not torch:
        raise CollageError(f"no {', '.join(others)}: {NO_TORCH}")
    return Contenders(tuple(name for name in names if name in ENGINES), others)
