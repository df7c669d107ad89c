"""How long is measured: more samples make the order of candidates more certain, and a compile longer."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

EFFORT_VARIABLE = "COLLAGE_EFFORT"
"""Environment variable with a JSON object of other fields for the efforts "usual" and "exhaustive". It is for
tests, which measure little; child processes inherit it."""


@dataclass(frozen=True)
class Effort:
    """How long kernels and whole models are measured; all times are in seconds.

    Where it ``races``, kernels that are slower than another of the same operators are let go after a few turns.

    Measurements of different efforts are kept apart by ``name``, which is "" for the usual one. The race of a region
    takes ``kernel_s`` for each kernel on average, and so long is a layout transform timed. Launches are timed in their
    places in the network for ``noted_s``. ``settle_s`` and ``turn_s`` are those of ``interleave``. Kernels need not be
    timed more precisely than ``worth``, a share of their network's time (see ``Enough``).
    """

    name: str
    kernel_s: float
    settle_s: float
    turn_s: float
    noted_s: float = 0.5
    races: bool = True
    worth: float = 0.0

    @property
    def mark(self) -> str:
        """What the effort adds to the key of a measurement."""
        return f" {self.name}" if self.name else ""


def _set(name: str, effort: Effort) -> Effort:
    """The effort with the fields that the environment sets."""
    return replace(effort, **json.loads(os.environ.get(EFFORT_VARIABLE, "{}")).get(name, {}))


FULL = _set("usual", Effort("", kernel_s=0.01, settle_s=0.05, turn_s=0.02, worth=5e-5))
EXHAUSTIVE = _set("exhaustive", replace(FULL, kernel_s=0.05, races=False, worth=0.0))
"""Measures every candidate to the end, and each as precisely as can be. What is known already is taken as it is."""
QUICK = Effort("quick", kernel_s=0.003, settle_s=0.0, turn_s=0.0)
"""The effort of a quick compile, which also measures fewer candidates."""

EFFORTS: Mapping[str, Effort] = {"usual": FULL, "exhaustive": EXHAUSTIVE}
"""The efforts that users choose from, by name."""
