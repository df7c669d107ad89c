"""Where values are scanned: no kernel that is right on finite numbers only gets others, and little is read for it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from collage.backends.base import VIEW
from collage.graph.dataflow import TensorType
from collage.graph.magnitudes import LIMIT, ROOM
from collage.schedule.guards import Flow, guarded
from collage.schedule.region import Region

UNKNOWN = math.inf
WHOLE = 2.0**64


@dataclass(frozen=True)
class Network:
    """Regions with one output each, which is ``gains`` times what they take together, and lies in ``types``.

    Regions that are right on finite numbers only take values up to their ``limits``, and none that is
    ``extraordinary``.
    """

    regions: list[Region]
    gains: list[float]
    types: dict[int, TensorType]
    limits: dict[int, float] = field(default_factory=dict)
    extraordinary: set[int] = field(default_factory=set)

    @property
    def flows(self) -> list[Flow]:
        def flow(gain: float, whole: bool) -> Flow:
            def through(taken: Sequence[float]) -> tuple[float, Sequence[float]]:
                made = sum(taken) * gain
                return made, [WHOLE if whole else made if made <= 1e36 else math.inf]

            return through

        made = [self.types[region.outputs[0]].dtype == "int64" for region in self.regions]
        return [flow(gain, whole) for gain, whole in zip(self.gains, made, strict=True)]

    def guarded(self) -> list[Region]:
        return guarded(self.regions, self.flows, self.types, self.limits, self.extraordinary)

    def nbytes(self, scans: Mapping[int, Sequence[int]]) -> int:
        return sum(self.types[value].nbytes for values in scans.values() for value in values)

    def is_safe(self, scans: Mapping[int, Sequence[int]]) -> bool:
        """Whether each region that needs it gets bounded inputs; ``scans`` are by number of region.

        When a value is scanned does not matter: what is found is heard of after the run.
        """
        looked_at = {value for values in scans.values() for value in values}
        bounds: dict[int, float] = {}
        for number, region in enumerate(self.regions):
            taken = []
            for value in region.inputs:
                bound = bounds.get(value, math.inf) if self.types[value].dtype == "float32" else WHOLE
                taken.append(min(bound, self.limits.get(value, LIMIT)) if value in looked_at else bound)
            inside = sum(taken) * self.gains[number]
            floats = [
                b for b, v in zip(taken, region.inputs, strict=True) if self.types[v].dtype == "float32"
            ]
            fits = inside <= ROOM and all(each <= ROOM for each in floats)
            if region.finite_only and not fits and not all(each <= LIMIT for each in floats):
                return False
            limited = zip(region.inputs, taken, strict=True)
            if region.finite_only and any(bound > self.limits.get(v, math.inf) for v, bound in limited):
                return False
            bounds.update(dict.fromkeys(region.outputs, inside if inside <= 1e36 else math.inf))
        return True


def scans_of(regions: Sequence[Region]) -> dict[int, tuple[int, ...]]:
    return {number: region.scans for number, region in enumerate(regions) if region.scans}


@st.composite
def networks(draw: st.DrawFn, most: int, branches: bool) -> Network:
    count = draw(st.integers(1, most))
    regions, gains = [], []
    inputs = draw(st.integers(1, 3)) if branches else 1
    types = {}
    for value in range(inputs + count):
        dtype = draw(st.sampled_from(["float32"] * 5 + ["int64"])) if branches else "float32"
        types[value] = TensorType((draw(st.integers(1, 9)),), dtype)
    for number in range(count):
        made = inputs + number
        reads: tuple[int, ...] = (made - 1,)
        if branches:
            few = st.lists(st.integers(max(0, made - 4), made - 1), min_size=1, max_size=3, unique=True)
            reads = tuple(draw(few))
        view = branches and draw(st.integers(0, 4)) == 0
        finite_only = not view and draw(st.integers(0, 3)) > 0
        regions.append(
            Region(VIEW if view else "b", (), (number,), (), reads, (made,), finite_only=finite_only)
        )
        gains.append(1.0 if view else draw(st.sampled_from([1e-6, 1.0, 1.0, 30.0, 1e4, 1e10, 1e20, UNKNOWN])))
    floats = [value for value, kind in types.items() if kind.dtype == "float32"]
    limits = st.dictionaries(st.sampled_from(floats), st.sampled_from([1e-3, 1.0, 1e6]), max_size=3)
    read = {value for region in regions if region.finite_only for value in region.inputs}
    extraordinary = draw(st.sets(st.sampled_from(sorted({*types} - read)))) if {*types} - read else set()
    return Network(regions, gains, types, draw(limits) if floats else {}, extraordinary)


@given(networks(7, branches=False))
@settings(max_examples=150, deadline=None)
def test_a_chain_is_scanned_at_the_cheapest_places(network: Network) -> None:
    found = scans_of(network.guarded())
    assert network.is_safe(found)
    count = len(network.regions)
    all_sets = (
        {number: (number,) for number in chosen}  # region n reads value n
        for size in range(count + 1)
        for chosen in itertools.combinations({*range(count)} - network.extraordinary, size)
    )
    assert network.nbytes(found) == min(network.nbytes(each) for each in all_sets if network.is_safe(each))


@given(networks(12, branches=True))
@settings(max_examples=250, deadline=None)
def test_any_network_is_safe(network: Network) -> None:
    regions = network.guarded()
    found = scans_of(regions)
    assert network.is_safe(found)
    for number, values in found.items():
        assert regions[number].backend != VIEW
        assert set(values) <= set(regions[number].inputs) - network.extraordinary
        left = [value for value in values if network.types[value].dtype == "float32"]
        assert len(set(left)) == len(left)
    whole = [v for values in found.values() for v in values if network.types[v].dtype == "int64"]
    read = {v for r in regions if r.finite_only for v in r.inputs if network.types[v].dtype == "int64"}
    assert sorted(whole) == sorted(read)
    if not any(region.finite_only for region in network.regions):
        assert not found


def test_a_residual_network_is_scanned_every_few_blocks() -> None:
    """Two convolutions of gain 10 and an addition each: 12 to 30 orders of magnitude are nine blocks."""
    regions, gains, types = [], [], {0: TensorType((100,), "float32")}
    value = 0
    for block in range(20):
        inner, whole = 2 * block + 1, 2 * block + 2
        types[inner] = types[whole] = TensorType((100 - block,), "float32")
        regions.append(Region("b", (), (inner,), (), (value,), (inner,), finite_only=True))
        regions.append(Region("b", (), (whole,), (), (inner, value), (whole,), finite_only=True))
        gains += [10.0, 10.0]
        value = whole
    network = Network(regions, gains, types)
    found = scans_of(network.guarded())
    assert network.is_safe(found)
    assert len(found) == 3
    assert sum(map(len, found.values())) == 3  # at the necks between blocks only
