"""Checks of a program that comes from a file, before anything of it runs.

Kernels check their own buffers when they are bound (``Kernel.bind``). The checks here are of what kernels cannot see:
that values exist, that each is written before it is read, and that streams and threads exist.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from collage.backends.base import VIEW
from collage.core.typed import MalformedError, shown
from collage.graph.dataflow import TensorType
from collage.graph.magnitudes import LIMIT, can_be_limited, is_scanned
from collage.graph.storage import HOST, Storage
from collage.graph.value_type import MOST_BYTES, TENSOR
from collage.schedule.program import Port, Program, runs_on_gpu
from collage.schedule.region import Region
from collage.schedule.suffix import Suffix

MOST_THREADS = 1024
"""The most threads of a team, and of an engine."""
MOST_STREAMS = 1024
"""The most streams on a GPU, and one."""


def check_regions(
    regions: Sequence[Region],
    inputs: Sequence[Port],
    types: Mapping[int, TensorType],
    threads: int,
    devices: Mapping[int, str],
) -> None:
    """Raise MalformedError unless the regions can be made a program of ``threads`` threads."""
    if not 1 <= threads <= MOST_THREADS:
        raise MalformedError(f"it is for {threads} threads")
    if sum(kind.nbytes for kind in types.values()) > MOST_BYTES:
        raise MalformedError("its values take more memory than any machine has")
    _refuse_repeated("inputs", [port.name for port in inputs])
    _refuse_repeated("inputs", [port.value for port in inputs])
    _check_devices(regions, inputs, types, devices)
    _refuse_mixed_streams(regions, threads, devices)
    there = {port.value for port in inputs}
    for number, region in enumerate(regions):
        _check_region(number, region, types, there)
        _check_stream(number, region, threads, devices)
        there.update(region.outputs)


def _check_region(number: int, region: Region, types: Mapping[int, TensorType], there: Collection[int]) -> None:
    if missing := {*region.inputs} - {*there}:
        raise MalformedError(f"region {number} reads value {min(missing)}, which nobody has made")
    if twice := {*region.outputs} & {*there}:
        raise MalformedError(f"region {number} makes value {min(twice)} a second time")
    _refuse_repeated(f"outputs of region {number}", region.outputs)
    if unknown := {*region.inputs, *region.outputs} - types.keys():
        raise MalformedError(f"value {min(unknown)} of region {number} has no type")
    for value in region.scans:
        if value not in there or not is_scanned(types[value].dtype):
            raise MalformedError(f"region {number} scans value {value}, of which there is no scan")
    if any(not 0 <= each < len(region.inputs) for each in region.in_place):
        raise MalformedError(f"region {number} overwrites an input that it does not have")
    if any(node < 0 for node in region.nodes):
        raise MalformedError(f"region {number} is of a negative node")
    if region.backend == VIEW:
        sizes = [sum(types[v].nbytes for v in values) for values in (region.inputs, region.outputs)]
        if 1 not in (len(region.inputs), len(region.outputs)) or sizes[0] != sizes[1]:
            raise MalformedError(f"view {number} makes {sizes[1]} bytes of {sizes[0]}")


def _check_stream(number: int, region: Region, threads: int, devices: Mapping[int, str]) -> None:
    streams = MOST_STREAMS if runs_on_gpu(region, devices) else threads
    if not 1 <= region.threads <= threads or not 0 <= region.stream < streams:
        raise MalformedError(
            f"region {number} takes {region.threads} threads on stream {region.stream}, of {threads} in all"
        )


def _refuse_mixed_streams(regions: Sequence[Region], threads: int, devices: Mapping[int, str]) -> None:
    """Raise MalformedError for streams on the GPU beside streams on the host, whose numbers are the same."""
    away = [each for each in regions if runs_on_gpu(each, devices)]
    here = [each for each in regions if each not in away and each.backend != VIEW]
    if any(each.stream for each in away) and any(each.threads < threads for each in here):
        raise MalformedError("some launches run on streams of the host, and some on those of the GPU")


def _check_devices(
    regions: Sequence[Region],
    inputs: Sequence[Port],
    types: Mapping[int, TensorType],
    devices: Mapping[int, str],
) -> None:
    if unknown := devices.keys() - types.keys():
        raise MalformedError(f"value {min(unknown)} is on a device and has no type")
    for device in {*devices.values()}:
        Storage(device)  # raises ValueError for what is no name
    for port in inputs:
        if port.value in devices:
            raise MalformedError(f"the input {shown(port.name)} is on the device {devices[port.value]}")
    for number, region in enumerate(regions):
        found = {devices.get(v, HOST) for v in (*region.inputs, *region.outputs)}
        if region.backend == VIEW and len(found) > 1:
            raise MalformedError(f"view {number} is on {len(found)} devices at once")


def check_limits(limits: Mapping[int, float], types: Mapping[int, TensorType]) -> None:
    """Raise MalformedError unless these can be the largest magnitudes that scans accept of values."""
    for value, limit in limits.items():
        if value not in types or not can_be_limited(types[value].dtype) or not 0 <= limit <= LIMIT:
            raise MalformedError(f"value {value} is scanned for magnitudes above {limit}")


def check_assumed(assumed: Mapping[int, bytes], inputs: Sequence[Port]) -> None:
    """Raise MalformedError unless these can be the contents of inputs."""
    sizes = {port.value: port.type.nbytes for port in inputs}
    for value, content in assumed.items():
        if sizes.get(value) != len(content):
            raise MalformedError(f"value {value} is compared with {len(content)} bytes")


def check_ports(program: Program, constants: Collection[int]) -> None:
    """Raise MalformedError unless each output is written by a region, or is an input or a constant."""
    for port in program.outputs:
        if port.value not in constants and program.buffer_view(port.value).base not in program.memory.offsets:
            raise MalformedError(f"nobody makes the output {shown(port.name)}")


def check_suffix(program: Program, suffix: Suffix) -> None:
    """Raises MalformedError unless the suffix takes what there is and gives what is promised."""
    if not 1 <= suffix.region.threads <= MOST_THREADS:
        raise MalformedError(f"its suffix takes {suffix.region.threads} threads")
    _refuse_repeated("inputs", [port.name for port in suffix.inputs])
    taken, made = {port.name for port in suffix.inputs}, {port.name for port in program.outputs}
    if missing := {port.name for port in program.inputs} - taken:
        raise MalformedError(f"{shown(min(missing))} is no input of the model")
    types = {port.name: port.type for port in suffix.inputs}
    for port in program.inputs:
        whole = types[port.name]
        shape = whole.shape or ()
        same = whole.kind == TENSOR and whole.dtype == port.type.dtype and len(shape) == len(port.type.shape)
        if not same or any(e not in (None, own) for e, own in zip(shape, port.type.shape, strict=True)):
            raise MalformedError(f"the input {shown(port.name)} is {whole} and {port.type}")
    if missing := {*suffix.reads} - taken - made:
        raise MalformedError(f"its suffix reads {shown(min(missing))}, which nobody has made")
    if missing := {port.name for port in suffix.outputs} - {*suffix.writes} - taken - made:
        raise MalformedError(f"nobody makes the output {shown(min(missing))}")


def _refuse_repeated(what: str, values: Sequence[object]) -> None:
    if len(set(values)) < len(values):
        raise MalformedError(f"two {what} are the same")
