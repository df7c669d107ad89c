"""The instance of Ray Serve that a cluster has: one for all who use it, with proxies that listen at one address."""

from __future__ import annotations

import logging
from types import ModuleType
from typing import Any

from collage.errors import ClusterError

_END_S = 3.0
"""How long its end is waited for. It ends by itself then: it is the cluster's, and not this process's."""


def client_of(serve: ModuleType) -> Any:
    """Ray's client of the instance, None where there is none yet. Ray Serve itself does not tell where it listens."""
    return serve.context._get_global_client(raise_if_no_controller_running=False)


def door_of(client: Any, host: str, port: int) -> tuple[str, int]:
    """Host and port of the proxies of an instance that is there already. A ``port`` of 0 is whichever they have.

    Raises ClusterError where they listen elsewhere than is wanted: they stay there as long as the instance does.
    """
    found = str(client.http_config.host), int(client.http_config.port)
    if found != (host, port or found[1]):
        raise ClusterError(
            f"Ray Serve runs on the cluster already, and listens on {found[0]}:{found[1]}, not on {host}:{port}: give "
            f"--host {found[0]} --port {found[1]}, or end it with `serve shutdown`."
        )
    return found


def end_instance(serve: ModuleType, name: str) -> None:
    """End the instance, unless it has applications besides the one of this name by now."""
    try:
        client = client_of(serve)
        if client is not None and not set(serve.status().applications) - {name}:
            client.shutdown(_END_S)
    except Exception as error:  # the cluster may be gone
        logging.getLogger(__name__).debug("Ray Serve is left as it is: %s", error)
