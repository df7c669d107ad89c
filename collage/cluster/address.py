"""The address of a cluster, as Ray has them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from collage.errors import UsageError

AUTO = "auto"
LOCAL = "local"
CLIENT = "ray://"

_HOST_PORT = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\]]+):(?P<port>\d{1,5})")


@dataclass(frozen=True)
class ClusterAddress:
    """Where a Ray cluster is: ``auto``, ``local``, ``host:port`` or ``ray://host:port``.

    ``auto`` is the cluster that this machine is part of, and ``local`` starts one that is this machine alone.
    ``slots`` is the number of workers on each node. Workers beside each other disturb each other's timings, so more
    than one is for work that is not timed, and for tests.
    """

    text: str
    slots: int = 1

    def __post_init__(self) -> None:
        """Raises UsageError for what is no address."""
        if self.text not in (AUTO, LOCAL) and self.host_port is None:
            raise UsageError(
                f"{self.text!r} is no address of a cluster; give auto, local, HOST:PORT or ray://HOST:PORT."
            )
        if self.slots < 1:
            raise UsageError(f"a node needs at least one slot, not {self.slots}.")

    def __str__(self) -> str:
        return self.text

    @property
    def host_port(self) -> tuple[str, int] | None:
        """The host and the port, or None where the address has none."""
        found = _HOST_PORT.fullmatch(self.text.removeprefix(CLIENT))
        if found is None or not 0 < int(found["port"]) < 1 << 16:
            return None
        return found["host"].strip("[]"), int(found["port"])


def as_address(given: str | ClusterAddress) -> ClusterAddress:
    """The address as a value. Raises UsageError."""
    return given if isinstance(given, ClusterAddress) else ClusterAddress(given.strip())
