"""Running replicas until somebody ends them."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any

from collage.cluster.address import CLIENT, ClusterAddress
from collage.cluster.connect import connected
from collage.core.library_text import library_text
from collage.errors import ClusterError, UsageError
from collage.serve.http.listening import bound
from collage.serve.http.options import ServerOptions
from collage.serve.replicas.deployment import application, check_room, cpus_of, import_serve

_END_S = 3.0
"""How long its end is waited for. It ends by itself then: it is the cluster's, and not this process's."""


def client_of(serve: ModuleType) -> Any:
    """Ray's client of the instance, None if there is none yet. Ray Serve itself does not say where it listens."""
    return serve.context._get_global_client(raise_if_no_controller_running=False)


def door_of(client: Any, host: str, port: int) -> tuple[str, int]:
    """Host and port of the proxies of an instance that is there already. A ``port`` of 0 is whichever they have.

    Raises ClusterError if they listen elsewhere than is wanted: they stay there as long as the instance does.
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


_POLL_S = 2.0


class _Ended(BaseException):
    pass


def run_replicas(options: ServerOptions, replicas: int, address: ClusterAddress, say: Callable[[str], None]) -> None:
    """Serve with replicas until SIGTERM or SIGINT, then finish what there is. Raises CollageError.

    A second signal ends at once. An application of the same name that the cluster has already is not touched. Ray
    Serve is ended with the replicas where this has started it, unless others use it by then.
    """
    if address.text.startswith(CLIENT):
        raise UsageError(f"replicas are started from a machine of the cluster, not through {address}: give auto.")
    app = application(options, replicas)
    cpus, name = cpus_of(options), options.shown_name
    serve = import_serve()
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    with connected(address) as ray, _signals():
        check_room(ray.nodes(), replicas, cpus)
        if name in serve.status().applications:
            raise ClusterError(f"the cluster serves a model {name} already: give another --name.")
        there = client_of(serve)
        if there is None:
            host, port = options.host, _free_port(options)
        else:
            host, port = door_of(there, options.host, options.port)
        try:
            _start(serve, name, host, port, app)
            shown = f"[{host}]" if ":" in host else host
            say(f"serving {name} at http://{shown}:{port}/v1 ({replicas} replicas that use {cpus} CPUs each)")
            while True:
                time.sleep(_POLL_S)
                _check(serve, name)
        except _Ended:
            pass
        finally:
            _stop(serve, name, options.drain_s)
            if there is None:
                end_instance(serve, name)


def _free_port(options: ServerOptions) -> int:
    """The port for the proxies, which is free now; they take it in a moment. Raises CollageError if it is not."""
    with bound(options.host, options.port) as listener:
        return int(listener.getsockname()[1])


def _start(serve: ModuleType, name: str, host: str, port: int, app: object) -> None:
    try:
        serve.start(http_options={"host": host, "port": port}, logging_config={"log_level": "ERROR"})
        serve.run(app, name=name, route_prefix="/")
    except Exception as error:  # Ray raises errors of many kinds
        text = _told(serve, name) or str(error)
        raise ClusterError(f"the replicas cannot be started: {_reason(text)}.") from error


def _told(serve: ModuleType, name: str) -> str:
    try:
        found = serve.status().applications[name].deployments.values()
        return "\n".join(each.message for each in found)
    except Exception:  # the cluster may be the trouble
        return ""


def _reason(text: str) -> str:
    """The last error in a text that may have tracebacks."""
    lines = [each.strip() for each in text.splitlines() if each.strip()]
    told = [each.split("Error: ", 1)[1] for each in lines if "Error: " in each]
    return library_text((told or lines or ["Ray gives no reason"])[-1]).rstrip(".")


def _check(serve: ModuleType, name: str) -> None:
    """Raise ClusterError if the application or the cluster is gone."""
    try:
        there = name in serve.status().applications
    except Exception as error:
        raise ClusterError(f"the cluster is gone: {library_text(error)}.") from error
    if not there:
        raise ClusterError(f"the model {name} is not served any more: somebody has deleted it on the cluster.")


def _stop(serve: ModuleType, name: str, drain_s: float) -> None:
    """Delete the application: no new requests come in, and replicas finish the open ones."""
    try:
        serve.delete(name, _blocking=False)
        end = time.monotonic() + drain_s + 5
        while time.monotonic() < end and name in serve.status().applications:
            time.sleep(0.1)
    except (_Ended, Exception) as error:
        logging.getLogger(__name__).debug("replicas are ended at once: %s", error)


@contextmanager
def _signals() -> Iterator[None]:
    """Raise ``_Ended`` in the main thread on SIGTERM and SIGINT inside the block."""

    def end(number: int, frame: FrameType | None) -> None:
        raise _Ended

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.signal(each, end) for each in (signal.SIGTERM, signal.SIGINT)}
    wakeup = signal.set_wakeup_fd(-1)  # the command line ends a process that takes longer than seconds to end
    try:
        yield
    except _Ended:
        pass  # before anything was started
    finally:
        signal.set_wakeup_fd(wakeup)
        for each, handler in before.items():
            signal.signal(each, handler)
