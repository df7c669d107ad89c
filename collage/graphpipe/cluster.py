"""The devices and the links between them: a description in TOML, and the times of messages and all-reduces."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collage.errors import UsageError, unknown_names

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib


@dataclass(frozen=True, slots=True)
class Link:
    """A link: seconds before the first byte, and bytes a second."""

    latency_s: float
    bandwidth: float

    def seconds(self, nbytes: float) -> float:
        """The seconds of a message."""
        return self.latency_s + nbytes / self.bandwidth

    def ring_s(self, nbytes: float, devices: int) -> float:
        """The seconds of a ring all-reduce of ``nbytes`` on each device, by links like this one."""
        steps = 2 * (devices - 1)
        return steps * (self.latency_s + nbytes / devices / self.bandwidth)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Equal devices of ``memory_bytes`` in nodes of ``node_devices``; ``inner`` links are in a node, ``outer`` between.

    Raises UsageError unless all numbers are above 0.
    """

    devices: int
    memory_bytes: float
    inner: Link
    outer: Link
    node_devices: int

    def __post_init__(self) -> None:
        for each in (self.devices, self.node_devices):
            if not isinstance(each, int) or isinstance(each, bool):
                raise UsageError(f"a cluster's devices are a whole number, and not {each!r}.")
        numbers = (self.devices, self.memory_bytes, self.node_devices, self.inner.bandwidth, self.outer.bandwidth)
        if not all(each > 0 for each in numbers) or min(self.inner.latency_s, self.outer.latency_s) < 0:
            raise UsageError("a cluster's devices, memory and bandwidths are above 0, and no latency is below 0.")

    def link(self, one: int, other: int) -> Link:
        """The link between two devices."""
        return self.inner if one // self.node_devices == other // self.node_devices else self.outer

    def among(self, devices: int) -> Link:
        """The slowest link among so many devices side by side."""
        return self.inner if devices <= self.node_devices else self.outer

    def placed(self, degrees: Sequence[int]) -> list[tuple[int, ...]]:
        """Devices for stages of these numbers of devices, in this order: each in one node if there is one with room.

        Raises UsageError if there are too few.
        """
        if sum(degrees) > self.devices:
            raise UsageError(f"the stages need {sum(degrees)} devices, and the cluster has {self.devices}.")
        nodes = [
            [*range(start, min(start + self.node_devices, self.devices))]
            for start in range(0, self.devices, self.node_devices)
        ]
        found: list[tuple[int, ...]] = []
        for degree in degrees:
            node = next((each for each in nodes if len(each) >= degree), None)
            if node is None:  # several nodes, the emptiest first
                node = [device for each in sorted(nodes, key=lambda each: -len(each)) for device in each]
            taken = tuple(sorted(node[:degree]))
            found.append(taken)
            nodes = [[device for device in each if device not in taken] for each in nodes]
        return found

    @staticmethod
    def read(path: Path) -> Cluster:
        """A cluster of a TOML file. Raises UsageError.

        Keys: ``devices``, ``memory_gb``, ``node_devices`` (default: all), and tables ``inner`` and ``outer`` (default:
        as ``inner``) with ``latency_us`` and ``bandwidth_gb_s``. A GB is 10^9 bytes.
        """
        try:
            found = tomllib.loads(path.read_text())
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
        except ValueError as error:
            raise UsageError(f"{path} is no TOML file: {error}.") from error
        try:
            return Cluster.from_values(found)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from error

    @staticmethod
    def from_values(found: Mapping[str, Any]) -> Cluster:
        """A cluster of the keys of a TOML file (see ``read``). Raises UsageError."""
        known = ("devices", "memory_gb", "node_devices", "inner", "outer")
        if unknown := [key for key in found if key not in known]:
            raise unknown_names("key of a cluster", unknown, known)
        if missing := [key for key in ("devices", "memory_gb", "inner") if key not in found]:
            raise UsageError(f"a cluster needs {', '.join(missing)}.")
        try:
            inner = _link(found["inner"])
            devices = found["devices"]
            outer = _link(found["outer"]) if "outer" in found else inner
            return Cluster(devices, found["memory_gb"] * 1e9, inner, outer, found.get("node_devices", devices))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise UsageError(f"malformed: {type(error).__name__}: {error}.") from error

    def to_json(self) -> dict[str, Any]:
        """The cluster by the keys of its TOML file."""
        links = {
            name: {"latency_us": link.latency_s * 1e6, "bandwidth_gb_s": link.bandwidth / 1e9}
            for name, link in (("inner", self.inner), ("outer", self.outer))
        }
        memory = self.memory_bytes / 1e9
        return {"devices": self.devices, "memory_gb": memory, "node_devices": self.node_devices, **links}


def _link(found: Mapping[str, Any]) -> Link:
    known = ("latency_us", "bandwidth_gb_s")
    if unknown := [key for key in found if key not in known]:
        raise unknown_names("key of a link", unknown, known)
    return Link(float(found["latency_us"]) / 1e6, float(found["bandwidth_gb_s"]) * 1e9)
