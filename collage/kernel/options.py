"""How a kernel is built and loaded: its variant, threads, tuning and profile."""

from __future__ import annotations

from dataclasses import dataclass

from collage.graph.storage import PLAIN, Storage


@dataclass(frozen=True)
class Variant:
    """One of the ways in which a backend can run a subgraph: storages of the inputs and outputs, and the split.

    ``inputs`` and ``outputs`` are in the order of the subgraph's; empty tuples mean that all are plain. ``split``
    says how the work is divided among the team's threads ("rows", "output channels", "groups", "columns"; "" when
    the kernel decides for itself).

    ``precision`` is "" for arithmetic in the model's own dtypes, which is exact as far as rounding goes. Another one is
    a member of ``BuildOptions.precisions``, such as "bf16": bfloat16 factors, exact products and float32 sums. A kernel
    that reads or writes a narrow storage format has the precision of that format. Two variants of a subgraph differ in
    one of the four.
    """

    inputs: tuple[Storage, ...] = ()
    outputs: tuple[Storage, ...] = ()
    split: str = ""
    precision: str = ""

    @property
    def layout(self) -> str:
        """Both sides in short: ``blocked``, ``plain -> blocked`` or ``blocked, plain -> blocked``."""
        sides = [" ".join(dict.fromkeys(map(str, side))) for side in (self.inputs, self.outputs)]
        taken, given = (side.replace(" ", ", ") or str(PLAIN) for side in sides)
        return taken if taken == given else f"{taken} -> {given}"

    def __str__(self) -> str:
        return "; ".join(each for each in (self.layout, self.split, self.precision) if each)

    def __repr__(self) -> str:
        """The fields, without the precision if it is the model's own: keys of artifacts hold this text."""
        fields = [f"inputs={self.inputs!r}", f"outputs={self.outputs!r}", f"split={self.split!r}"]
        fields += [f"precision={self.precision!r}"] if self.precision else []
        return f"Variant({', '.join(fields)})"


ALL_PLAIN = Variant()
"""The one variant of a backend that knows no other."""

DYNAMIC_INT8 = "dynamic_int8"
"""The precision of products whose weights have 8 bits, and whose other factors are scaled to 8 bits in each call."""


@dataclass(frozen=True)
class BuildOptions:
    """What a kernel is built for: ``threads`` it may use, ``tune_trials`` a tuning compiler may spend.

    ``tuning`` is the record that ``Tuner.tune`` gave for the subgraph, or "".

    ``exclusive`` says that no other engine's threads share the cores, so that idle threads may spin: the kernel is the
    whole model, or all engine kernels beside it are the same engine's. Anywhere else spinning pools fight.

    ``variant`` is one of those that ``Backend.variants`` gave for the subgraph, ``profile`` one of
    ``Engine.profiles``.

    If ``reassociate`` is False, only ``direct`` algorithms are asked for. What reassociates (``Backend.reassociates``)
    is then not measured; a backend that has a direct kernel for such a subgraph, but does not offer it otherwise,
    offers it in its place. ``exact`` implies that, and takes kernels only of backends that keep NaN. Both are no part
    of a measurement's key: a variant is the same kernel with and without, or ``Backend.settings`` says so.

    ``precisions`` are the reduced precisions that kernels may compute in. A backend offers a variant of another
    precision than "" only if that is among them and this machine has instructions for it. It is no part of a
    measurement's key: a variant is the same kernel whatever else is allowed.
    """

    threads: int = 1
    tune_trials: int = 0
    exclusive: bool = False
    tuning: str = ""
    variant: Variant = ALL_PLAIN
    profile: str = ""
    exact: bool = False
    reassociate: bool = True
    precisions: frozenset[str] = frozenset()

    @property
    def direct(self) -> bool:
        """Whether no algorithm may reassociate."""
        return self.exact or not self.reassociate
