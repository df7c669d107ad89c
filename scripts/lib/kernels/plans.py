"""The same layers planned with different speeds of a machine: which kernels that makes, and how fast these are."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from collage.backends.base import Backend, UnsupportedError
from collage.graph.arithmetic import arithmetic_of
from collage.kernel.machine_speeds import MachineSpeeds
from collage.kernel.options import BuildOptions
from scripts.lib.kernels.layers import BACKENDS, LEAST_ROUNDS, Layer, copies_of, launch_list
from scripts.lib.kernels.turns import Turn, in_turns


@dataclass(frozen=True)
class Made:
    """A kernel, which several plans may have in common: its name, and a digest of its artifact."""

    name: str
    digest: str

    def __str__(self) -> str:
        return f"{self.name} {self.digest}"


@dataclass(frozen=True)
class Planned:
    """A layer's kernels by the name of the plan, and what each kernel is made of."""

    layer: Layer
    kernels: Mapping[str, frozenset[Made]]
    parts: Mapping[Made, tuple[Backend, bytes, BuildOptions]]

    @property
    def differ(self) -> bool:
        """Whether the plans have not the same kernels."""
        return len(set(self.kernels.values())) > 1

    @property
    def flop(self) -> int:
        """The arithmetic of the layer by its definition."""
        subgraph = self.layer.subgraph
        return sum(arithmetic_of(subgraph.model.graph, node).flop for node in subgraph.operators)

    def race(self, seconds: float, *, cold: bool) -> dict[Made, float]:
        """The microseconds of all kernels of all plans, in turns; one that two plans have is run once.

        They are the 15th percentile of the rounds, since other processes only ever add to them.
        """
        copies = copies_of(self.layer, cold)
        runs = {str(made): launch_list(self.layer, *part, copies) for made, part in self.parts.items()}
        times = in_turns(runs, seconds, Turn(), rounds=LEAST_ROUNDS)
        return {made: 1e6 * float(np.quantile(times[str(made)], 0.15)) / copies for made in self.parts}


def planned(layer: Layer, plans: Mapping[str, MachineSpeeds], threads: int) -> Planned:
    """The kernels of a layer that each of the plans has, ours and oneDNN's."""
    parts: dict[Made, tuple[Backend, bytes, BuildOptions]] = {}
    kernels = {}
    for plan, speeds in plans.items():
        mine = set()
        for backend in BACKENDS:
            for variant in backend.variants(layer.subgraph, BuildOptions(threads=threads, speeds=speeds)):
                options = BuildOptions(threads=threads, speeds=speeds, variant=variant)
                try:
                    artifact = backend.codegen(layer.subgraph, options)
                except UnsupportedError:
                    continue
                made = Made(f"{backend.name}: {variant}", hashlib.sha256(artifact).hexdigest()[:8])
                mine.add(made)
                parts.setdefault(made, (backend, artifact, options))
        kernels[plan] = frozenset(mine)
    return Planned(layer, kernels, parts)
