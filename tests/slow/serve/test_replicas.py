"""Replicas behind the proxy of a real Ray Serve, which is started on this machine for these tests."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from collage.cluster.address import ClusterAddress
from collage.cluster.connect import connected
from collage.errors import ClusterError
from collage.serve.replicas.command import door_of, end_instance
from collage.serve.replicas.deployment import check_room, most_beside, own_cpus
from tests.helpers.serve.served import CONFIG, ROOT, Served, greedy, served, write_folder

NEEDED = ("ray", "fastapi")  # Ray Serve itself says only that something is missing
needs_ray_serve = pytest.mark.skipif(
    any(find_spec(name) is None for name in NEEDED),
    reason="Ray Serve is not installed: pip install 'collage-compiler[replicas]'",
)
SLOW = replace(CONFIG, step_ms=20.0)
TOKENS = 150
ASK = {"model": "m", "prompt": [1, 2, 3], "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}


def test_replicas_of_one_node_share_its_processors_and_memory() -> None:
    usable = [0, 2, 4, 6, 8]
    assert [own_cpus(usable, 2, place) for place in range(3)] == [(0, 2), (4, 6), ()]
    assert own_cpus(usable, 1, 0) == ()
    assert [most_beside(8, 2, replicas) for replicas in (3, 100)] == [3, 4]  # the others are on other nodes
    assert most_beside(1, 2, 4) == 1  # Ray was told of more processors than there are


def client_at(host: str, port: int) -> Any:
    """Ray's client of an instance that listens there."""
    return SimpleNamespace(http_config=SimpleNamespace(host=host, port=port))


def test_an_instance_that_listens_elsewhere_is_told() -> None:
    client = client_at("127.0.0.1", 8000)
    assert door_of(client, "127.0.0.1", 8000) == door_of(client, "127.0.0.1", 0) == ("127.0.0.1", 8000)
    for host, port in (("127.0.0.1", 9000), ("0.0.0.0", 8000)):
        with pytest.raises(ClusterError, match=rf"on 127\.0\.0\.1:8000, not on {host}:{port}: give --host"):
            door_of(client, host, port)


@pytest.mark.parametrize(
    ("applications", "ended"),
    [(set(), True), ({"m"}, True), ({"m", "another"}, False)],
    ids=["none", "its own", "another"],
)
def test_an_instance_with_other_applications_is_not_ended(applications: set[str], ended: bool) -> None:
    calls: list[float] = []
    serve: Any = SimpleNamespace(
        context=SimpleNamespace(_get_global_client=lambda **_: SimpleNamespace(shutdown=calls.append)),
        status=lambda: SimpleNamespace(applications=dict.fromkeys(applications)),
    )
    end_instance(serve, "m")
    assert bool(calls) == ended


def test_a_cluster_without_room_is_told_at_once() -> None:
    nodes = [
        {"Alive": True, "Resources": {"CPU": 5.0}},
        {"Alive": True, "Resources": {}},
        {"Alive": False, "Resources": {"CPU": 64.0}},
    ]
    check_room(nodes, 2, 2)
    with pytest.raises(ClusterError, match=r"room for 2 replicas that use 2 CPUs each, not for 3"):
        check_room(nodes, 3, 2)


@pytest.fixture(scope="module")
def model(needs_server: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that takes 20 ms an iteration."""
    return write_folder(tmp_path_factory.mktemp("replicas") / "model", SLOW, tokenizer=False)


@pytest.fixture(scope="module")
def door(model: Path) -> Iterator[Served]:
    """Two replicas; starting them takes many seconds, so that all tests share them."""
    with served(model, "--replicas", "2", limit_s=240) as found:
        yield found
        found.end()


def replicas_of(door: Served) -> dict[int, psutil.Process]:
    """The replicas that have an engine, by the ids of their processes."""
    found = {}
    for each in psutil.Process(door.process.pid).children(recursive=True):
        try:
            if each.cmdline()[0].startswith("ray::ServeReplica") and each.children():
                found[each.pid] = each
        except (psutil.Error, IndexError):  # it has ended meanwhile
            continue
    return found


class Stream:
    """A stream that is read in a thread of its own."""

    def __init__(self, door: Served) -> None:
        self.events: list[Any] = []
        self.done = False
        self._client = socket.create_connection(("127.0.0.1", door.port), timeout=60)
        body = json.dumps({**ASK, "stream": True}).encode()
        self._client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        data = b""
        try:
            while b"\r\n0\r\n" not in data and (part := self._client.recv(65536)):
                data += part
                *whole, _ = data.split(b"\n\n")
                lines = [line for each in whole for line in each.splitlines() if line.startswith(b"data: ")]
                self.done = b"data: [DONE]" in lines
                self.events = [json.loads(each[6:]) for each in lines if each != b"data: [DONE]"]
        except OSError:
            pass  # the other side is gone
        self._client.close()

    def begun(self) -> None:
        """Wait for the first tokens."""
        end = time.monotonic() + 60
        while len(self.events) < 3:
            assert time.monotonic() < end
            time.sleep(0.01)

    def leave(self) -> None:
        """Go without the rest."""
        self._client.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def tokens(self) -> list[int]:
        """What has come at the end."""
        self._thread.join()
        return [token for each in self.events if "choices" in each for token in each["choices"][0]["token_ids"]]


def expected() -> list[int]:
    return list(greedy(SLOW, tuple(ASK["prompt"]), TOKENS, None))


@needs_ray_serve
def test_answers_are_those_of_one_server(door: Served) -> None:
    assert len(replicas_of(door)) == 2
    assert door.ask("GET", "/health")[::2] == (200, {"status": "ok"})
    assert door.ask("GET", "/v1/models")[2]["data"][0]["id"] == "m"
    status, _, found = door.ask("POST", "/v1/completions", ASK)
    assert status == 200
    assert found["choices"][0]["token_ids"] == expected()
    status, _, found = door.ask("POST", "/v1/completions", {**ASK, "prompt": [259]})
    assert status == 400
    assert "vocabulary" in found["error"]["message"]


@needs_ray_serve
def test_streams_come_token_by_token(door: Served) -> None:
    stream = Stream(door)
    stream.begun()
    assert not stream.done
    assert stream.tokens() == expected()
    assert stream.done


@needs_ray_serve
def test_a_killed_engine_costs_only_its_own_streams(door: Served) -> None:
    streams = [Stream(door) for _ in range(6)]
    for each in streams:
        each.begun()
    replica = next(iter(replicas_of(door).values()))
    (engine,) = replica.children()
    engine.kill()
    for each in streams:
        each.tokens()
    whole = [each for each in streams if each.done]
    assert 0 < len(whole) < 6
    assert all(each.tokens() == expected() for each in whole)
    assert all("killed by SIGKILL" in each.events[-1]["error"]["message"] for each in streams if not each.done)
    assert replica.pid in replicas_of(door)


@needs_ray_serve
def test_a_killed_replica_is_replaced_and_other_streams_go_on(door: Served) -> None:
    wait_for_two(door)
    before = replicas_of(door)
    streams = [Stream(door) for _ in range(6)]
    for each in streams:
        each.begun()
    killed = next(iter(before.values()))
    (engine,) = killed.children()
    killed.kill()
    found = [each.tokens() for each in streams]
    whole = [each for each in streams if each.done]
    assert 0 < len(whole) < 6
    assert all(each.tokens() == expected() for each in whole)
    assert all(each == expected()[: len(each)] for each in found)
    assert wait_for_two(door) != set(before)
    psutil.wait_procs([engine], timeout=20)
    assert not engine.is_running()
    streams = [Stream(door) for _ in range(6)]
    assert [each.tokens() for each in streams] == [expected()] * 6


def wait_for_two(door: Served) -> set[int]:
    """Wait until there are two replicas that serve. Returns the ids of their processes."""
    end = time.monotonic() + 120
    while True:
        found = set(replicas_of(door))
        statuses = [door.ask("GET", "/health")[0] for _ in range(6)]
        if len(found) == 2 and statuses == [200] * 6:
            return found
        assert time.monotonic() < end, (found, statuses)
        time.sleep(0.2)


@needs_ray_serve
def test_a_client_that_leaves_frees_its_blocks(door: Served) -> None:
    stream = Stream(door)
    stream.begun()
    stream.leave()
    end = time.monotonic() + 2
    cancelled = False
    while not cancelled:
        assert time.monotonic() < end
        cancelled = 'collage_requests_total{finish="cancelled"} 1.0' in door.ask("GET", "/metrics")[2]


@needs_ray_serve
def test_sigterm_finishes_open_streams(door: Served) -> None:
    """It is the last test of this server."""
    stream = Stream(door)
    stream.begun()
    processes = psutil.Process(door.process.pid).children(recursive=True)
    assert door.end() == 0, door.log.read_text()
    assert stream.tokens() == expected()
    assert stream.done
    _, left = psutil.wait_procs(processes, timeout=20)
    assert not left


def refused(*arguments: str) -> str:
    """The last line of a server that does not start."""
    command = [sys.executable, "-m", "collage", "serve", *arguments, "--port", "0"]
    found = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=240)
    assert found.returncode == 1, found
    assert "Traceback" not in found.stderr
    return found.stderr.strip().splitlines()[-1]


@needs_ray_serve
def test_what_cannot_be_started_is_one_line(model: Path) -> None:
    assert "there is no" in refused(str(model / "nothing"), "--replicas", "2")
    assert "room for" in refused(str(model), "--replicas", "1000")


@needs_ray_serve
def test_ray_serve_ends_with_the_command_that_has_started_it(model: Path) -> None:
    with connected(ClusterAddress("local")) as ray:
        address = ray.get_runtime_context().gcs_address
        for _ in range(2):  # each at another port
            with served(model, "--replicas", "1", "--cluster", address, limit_s=240) as found:
                assert found.ask("GET", "/health")[0] == 200
                assert found.end() == 0, found.log.read_text()
