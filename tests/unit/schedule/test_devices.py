"""The memory plan of values on several devices: an arena for each, which nothing else changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collage.core.typed import MalformedError
from collage.graph.dataflow import TensorType
from collage.graph.storage import HOST
from collage.schedule.program import Port, Program, make_program
from collage.schedule.read_program import read_program
from collage.schedule.region import Region
from collage.schedule.schedule import TEAM
from collage.schedule.sharing import BufferView

KIND = TensorType((64,), "float32")


def region(backend: str, inputs: tuple[int, ...], outputs: tuple[int, ...], **more: Any) -> Region:
    return Region(backend, ("op",), (0,), ("node",), inputs, outputs, **more)


def program(
    regions: list[Region],
    last: int,
    devices: Mapping[int, str],
    types: Mapping[int, TensorType] | None = None,
) -> Program:
    types = types or dict.fromkeys(range(last + 1), KIND)
    return make_program(regions, [Port("x", 0, types[0])], [Port("y", last, types[last])], types, devices=devices)


def test_each_device_has_an_arena() -> None:
    """0 is copied to the device, 1 becomes 2 and 3 there, and 3 is copied back."""
    regions = [
        region("copy", (0,), (1,)),
        region("npu", (1,), (2,)),
        region("npu", (2,), (3,)),
        region("copy", (3,), (4,)),
    ]
    found = program(regions, 4, {1: "npu", 2: "npu", 3: "npu"})
    assert {name: set(plan.offsets) for name, plan in found.arenas.items()} == {
        HOST: {0, 4},
        "npu": {1, 2, 3},
    }
    assert found.arenas["npu"].nbytes == found.arenas["npu"].lower_bound == 2 * KIND.nbytes
    assert found.memory.nbytes == KIND.nbytes  # the input is not read again when the output is made
    assert found.offset(1) == found.offset(3) == 0
    assert read_program(found.to_json()) == found
    assert found.to_json()["devices"] == {"1": "npu", "2": "npu", "3": "npu"}


def test_results_do_not_overwrite_values_of_another_device() -> None:
    regions = [region("a", (0,), (1,)), region("npu", (1,), (2,), in_place=(0,)), region("c", (2,), (3,))]
    assert program(regions, 3, {}).aliases == {2: BufferView(1, 0)}
    assert program(regions, 3, {2: "npu"}).aliases == {}
    assert program(regions, 3, {1: "npu", 2: "npu"}).aliases == {2: BufferView(1, 0)}


def test_views_are_on_the_device_of_what_they_view() -> None:
    flat = TensorType((8, 8), "float32")
    regions = [region("copy", (0,), (1,)), region("view", (1,), (2,)), region("copy", (2,), (3,))]
    found = program(regions, 3, {1: "npu", 2: "npu"}, {0: KIND, 1: KIND, 2: flat, 3: flat})
    assert found.aliases == {2: BufferView(1, 0)}
    assert list(found.arenas["npu"].offsets) == [1]
    assert found.offset(2) == 0


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 3), st.sampled_from(["", "npu", "gpu:1"])),
        min_size=1,
        max_size=12,
    )
)
def test_the_arena_of_a_device_is_that_of_its_values_alone(
    steps: list[tuple[int, int, str]],
) -> None:
    """Each value is made of one or two of the last ones. Values of one device never overlap while both are alive."""
    regions, devices = [], {}
    for number, (first, second, device) in enumerate(steps, 1):
        reads = tuple(dict.fromkeys(max(0, number - 1 - back) for back in (first, second)))
        regions.append(region("a", reads, (number,)))
        if device and number < len(steps):
            devices[number] = device
    last = len(steps)
    found = program(regions, last, devices)
    alive = {0: (0, 0)}
    for number, each in enumerate(regions):
        for value in (*each.inputs, *each.outputs):
            alive[value] = (alive.get(value, (number, number))[0], number)
    alive[last] = (alive[last][0], len(regions))
    for a, (begin, end) in alive.items():
        plan = found.arenas[found.device(a)]
        assert plan.offsets[a] + KIND.nbytes <= plan.nbytes
        for b in (b for b in plan.offsets if b != a and found.device(b) == found.device(a)):
            if begin <= alive[b][1] and alive[b][0] <= end:
                assert abs(plan.offsets[a] - plan.offsets[b]) >= KIND.nbytes
    assert {v for plan in found.arenas.values() for v in plan.offsets} == set(alive)
    assert read_program(found.to_json()) == found


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ({"9": "npu"}, "value 9 is on a device and has no type"),
        ({"0": "npu"}, "the input 'x' is on the device npu"),
        ({"2": "npu"}, "view 1 is on 2 devices at once"),
        ({"1": "npu", "2": "npu"}, ""),
        ({"1": "N P U"}, "no device is called 'N P U'"),
        ({"1": 7}, "7"),
    ],
)
def test_devices_of_a_file(devices: dict[str, Any], words: str) -> None:
    regions = [region("copy", (0,), (1,)), region("view", (1,), (2,)), region("copy", (2,), (3,))]
    data = {**program(regions, 3, {}).to_json(), "devices": devices}
    if not words:
        assert read_program(data).devices == {1: "npu", 2: "npu"}
        return
    with pytest.raises(ValueError, match=words) as raised:
        read_program(data)
    assert isinstance(raised.value, MalformedError) or "called" in words


def test_streams_of_a_gpu() -> None:
    """Two chains on the GPU, on two streams between copies: values of the two share no bytes there."""
    chains = [
        region("copy", (0,), (1,)),
        region("cuda", (1,), (2,), stream=1),
        region("cuda", (1,), (3,), stream=2),
        region("cuda", (2,), (4,), stream=1),
        region("cuda", (3, 4), (5,), stream=1),
        region("copy", (5,), (6,)),
    ]
    devices = dict.fromkeys(range(1, 6), "cuda")
    found = program(chains, 6, devices)
    assert found.ordered.schedule.streams == (TEAM, 0, 1, 0, 0, TEAM)
    assert found.ordered.events == ((2, 4),)
    offsets = found.arenas["cuda"].offsets
    assert offsets[3] not in (offsets[1], offsets[2], offsets[4])
    assert read_program(found.to_json()) == found
    alone = program([replace(each, stream=0) for each in chains], 6, devices)
    assert alone.ordered.schedule.count == 0
    assert alone.arenas["cuda"].nbytes <= found.arenas["cuda"].nbytes


def test_streams_of_a_gpu_and_of_the_host_are_not_mixed() -> None:
    regions = [
        region("copy", (0,), (1,), threads=2),
        region("cuda", (1,), (2,), threads=2, stream=1),
        region("copy", (2,), (3,), threads=2),
        region("host", (3,), (4,), threads=1, stream=1),
    ]
    types = dict.fromkeys(range(5), KIND)
    ports = [Port("x", 0, KIND)], [Port("y", 4, KIND)]
    found = make_program(regions, *ports, types, 2, {1: "cuda", 2: "cuda"})
    with pytest.raises(MalformedError, match="streams of the host, and some on those of the GPU"):
        read_program(found.to_json())
    wild = replace(regions[1], stream=5000)
    whole = replace(regions[3], threads=2, stream=0)
    again = make_program([regions[0], wild, regions[2], whole], *ports, types, 2, {1: "cuda", 2: "cuda"})
    with pytest.raises(MalformedError, match="on stream 5000"):
        read_program(again.to_json())
