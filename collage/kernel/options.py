"""How a kernel is built and loaded: its variant, threads, tuning and profile."""

from __future__ import annotations

from dataclasses import dataclass

from collage.graph.storage import PLAIN, Storage
from collage.kernel.machine_speeds import WRITTEN_DOWN, MachineSpeeds


@dataclass(frozen=True)
class Variant:
    """One of the ways in which a backend can run a subgraph: storages of the inputs and outputs, and the split.

    ``inputs`` and ``outputs`` are in the order of the subgraph's; empty tuples mean that all are plain. ``split``
    says how the work is divided among the team's threads ("rows", "output channels", "groups", "columns"; "" when
    the kernel decides for itself). Two variants of a subgraph differ in one of the three.
    """

    inputs: tuple[Storage, ...] = ()
    outputs: tuple[Storage, ...] = ()
    split: str = ""

    @property
    def layout(self) -> str:
        """Both sides in short: ``blocked``, ``plain -> blocked`` or ``blocked, plain -> blocked``."""
        sides = [" ".join(dict.fromkeys(map(str, side))) for side in (self.inputs, self.outputs)]
        taken, given = (side.replace(" ", ", ") or str(PLAIN) for side in sides)
        return taken if taken == given else f"{taken} -> {given}"

    def __str__(self) -> str:
        return f"{self.layout}; {self.split}" if self.split else self.layout


ALL_PLAIN = Variant()
"""The one variant of a backend that knows no other."""


@dataclass(frozen=True)
class BuildOptions:
    """What a kernel is built for: ``threads`` it may use, ``tune_trials`` a tuning compiler may spend.

    ``tuning`` is the record that ``Tuner.tune`` gave for the subgraph, or "".

    ``exclusive`` tells that no other engine's threads share the cores, so that idle threads may spin: the
    kernel is the whole model, or all engine kernels beside it are the same engine's. Anywhere else spinning
    pools fight (alternating spinning ONNX Runtime with OpenVINO slowed both by 5-10x on two cores).

    ``variant`` is one of those that ``Backend.variants`` gave for the subgraph, ``profile`` one of
    ``Engine.profiles``.

    ``exact`` asks for direct algorithms only. What reassociates (``Backend.reassociates``) is then not measured; a
    backend that has a direct kernel for such a subgraph, but does not offer it otherwise, offers it in its place. It
    is no part of a measurement's key: a variant is the same kernel with and without, or ``Backend.settings`` says so.

    ``speeds`` are what is known of the machine. A backend may leave out variants because of them; where they change a
    variant's kernel, ``Backend.settings`` says so.
    """

    threads: int = 1
    tune_trials: int = 0
    exclusive: bool = False
    tuning: str = ""
    variant: Variant = ALL_PLAIN
    profile: str = ""
    exact: bool = False
    speeds: MachineSpeeds = WRITTEN_DOWN
