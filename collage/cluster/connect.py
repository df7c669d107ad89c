"""Connecting to Ray: everything that can be wrong with an address is one line, and takes seconds."""

from __future__ import annotations

import io
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from types import ModuleType
from typing import Any

from collage.cluster.address import AUTO, CLIENT, LOCAL, ClusterAddress
from collage.cluster.trial import failure
from collage.core.library_text import library_text
from collage.errors import ClusterError

_ANSWER_LIMIT_S = 5.0
_TRIAL_LIMIT_S = 30.0
_WAY_OUT = "Start Ray there with `ray start --head`, or give the address of a cluster that runs."
_OF_LOCAL = {"RAY_worker_niceness": "0"}
"""The environment of a cluster that is started here, unless it is set otherwise. Ray would run workers at the lowest
priority, where other programs delay what they time."""


def import_ray() -> ModuleType:
    """Import Ray's module. Raises ClusterError where it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise ClusterError(
            "a cluster needs Ray, which is not installed: pip install 'collage-compiler[cluster]'."
        ) from error
    found: ModuleType = ray
    return found


@contextmanager
def connected(address: ClusterAddress) -> Iterator[ModuleType]:
    """Ray's module, connected to the cluster inside the block. A connection that exists is used, and stays.

    Raises ClusterError, which names the address and the way out.
    """
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    if address.text != LOCAL:
        _check(address)
    try:
        with (
            _own_signals(),
            _environment(_OF_LOCAL if address.text == LOCAL else {}),
            redirect_stdout(None),
            redirect_stderr(_Muted()),
        ):
            ray.init(address.text, **_options(address))
    except Exception as error:  # Ray raises errors of many kinds
        raise ClusterError(_explained(address, f"{type(error).__name__}: {error}")) from error
    try:
        yield ray
    finally:
        with _own_signals():
            ray.shutdown()


def _options(address: ClusterAddress) -> dict[str, Any]:
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    return {**quiet, "include_dashboard": False} if address.text == LOCAL else quiet


def _check(address: ClusterAddress) -> None:
    """Raises ClusterError where Ray would wait for minutes, or end this process."""
    if address.host_port is not None:
        try:
            socket.create_connection(address.host_port, _ANSWER_LIMIT_S).close()
        except OSError as error:
            why = str(error.strerror or error) or "it does not answer"
            raise ClusterError(f"the cluster at {address} does not answer: {why}. {_WAY_OUT}") from error
    problem = failure(address.text, _TRIAL_LIMIT_S)
    if problem:
        raise ClusterError(_explained(address, problem))


def _explained(address: ClusterAddress, problem: str) -> str:
    """The error's text, with the way out that fits."""
    text = library_text(problem)
    if "ersion mismatch" in text:
        return f"the cluster at {address} has another Ray or Python: {text}"
    if "ray[client]" in text:
        return f"{CLIENT} addresses need Ray's client: pip install 'collage-compiler[cluster]'."
    if address.text == AUTO and "Could not find any running Ray" in text:
        return f"this machine is part of no cluster. {_WAY_OUT}"
    return f"the cluster at {address} cannot be used: {text}. {_WAY_OUT}"


class _Muted(io.StringIO):
    """Takes what Ray's Python says, which is not for users. Its fault handler wants the true descriptor."""

    def fileno(self) -> int:
        """The descriptor of the process's own stderr."""
        return 2


@contextmanager
def _environment(extra: dict[str, str]) -> Iterator[None]:
    """Set environment variables inside the block, where they are not set."""
    new = {name: value for name, value in extra.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            os.environ.pop(name, None)


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep this process's handlers, which Ray replaces by its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
