"""Reading a program from a module file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from collage.core.typed import typed
from collage.graph.value_type import read_type
from collage.schedule.check_program import check_assumed, check_limits, check_regions, check_suffix
from collage.schedule.program import Port, Program, make_program
from collage.schedule.region import Region
from collage.schedule.suffix import Suffix, read_rows


def read_program(data: Mapping[str, Any]) -> Program:
    """The inverse of ``Program.to_json``.

    Raises ValueError, KeyError or TypeError for what no program can be made of.
    """
    types = {int(v): read_type(shape, dtype) for v, (shape, dtype) in data["types"].items()}
    regions = [Region.from_json(each) for each in data["regions"]]
    given = typed(list[tuple[str, int]], data["outputs"])
    inputs = []
    for name, value, rows in data["inputs"]:
        port = typed(int, value)
        inputs.append(Port(typed(str, name), port, types[port], read_rows(rows)))
    outputs = [Port(name, value, types[value]) for name, value in given]
    threads = typed(int, data["threads"])
    devices = {int(v): typed(str, each) for v, each in data.get("devices", {}).items()}
    limits = {int(v): typed(float, each) for v, each in data.get("limits", {}).items()}
    check_regions(regions, inputs, types, threads, devices)
    assumed = {int(v): bytes.fromhex(typed(str, each)) for v, each in data.get("assumed", {}).items()}
    check_limits(limits, types)
    check_assumed(assumed, inputs)
    program = make_program(regions, inputs, outputs, types, threads, devices, limits, assumed)
    if data["tail"] is None:
        return program
    suffix = Suffix.from_json(data["tail"])
    check_suffix(program, suffix)
    return program.followed_by(suffix)
