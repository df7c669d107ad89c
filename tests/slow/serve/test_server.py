"""The server under bad input, clients that leave, overload, signals, and an engine that dies."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from collage.errors import CollageError
from collage.serve.http.front import Front
from collage.serve.http.listening import bound
from collage.serve.http.messages import ModelReady
from collage.serve.http.options import ServerOptions
from collage.serve.http.server import run_server
from collage.serve.options import EngineOptions
from tests.helpers.cli.helpers import fails
from tests.helpers.serve.served import CONFIG, ROOT, Served, greedy, served, write_folder

pytestmark = pytest.mark.usefixtures("needs_server")

ASK = {"model": "m", "prompt": [1, 2, 3], "max_tokens": 200, "stream": True, "ignore_eos": True}


@pytest.fixture(scope="module")
def slow(needs_server: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that takes 20 ms an iteration."""
    return write_folder(
        tmp_path_factory.mktemp("slow") / "model",
        replace(CONFIG, step_ms=20.0, block_count=1024),
        tokenizer=False,
    )


@pytest.fixture(scope="module")
def tight(needs_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose cache has room for half of what the model takes."""
    folder = write_folder(tmp_path_factory.mktemp("tight") / "model", replace(CONFIG, block_count=8))
    with served(folder) as found:
        yield found


def open_stream(server: Served, **changes: Any) -> socket.socket:
    """Ask for a stream, and read its first event."""
    body = json.dumps({**ASK, **changes}).encode()
    client = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    client.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    seen = b""
    while b"data: " not in seen:
        part = client.recv(65536)
        assert part, seen
        seen += part
    return client


def rest_of(client: socket.socket) -> bytes:
    """What is left of a stream."""
    client.settimeout(60)
    data = b""
    while b"\r\n0\r\n" not in data and (part := client.recv(65536)):
        data += part
    client.close()
    return data


def test_health_and_metrics(server: Served) -> None:
    assert server.ask("GET", "/health")[::2] == (200, {"status": "ok"})
    before = server.metric("generated_tokens_total")
    status, _, found = server.ask(
        "POST", "/v1/completions", {"model": "m", "prompt": [5], "max_tokens": 4, "ignore_eos": True}
    )
    assert status == 200, found
    assert server.metric("generated_tokens_total") == before + 4
    assert server.metric("time_to_first_token_seconds_count") >= 1
    assert server.metric("time_between_tokens_seconds_count") >= 3
    assert server.metric("cache_blocks") == CONFIG.block_count


def test_a_common_beginning_is_found_in_the_cache(server: Served) -> None:
    body = {"model": "m", "prompt": [9] * 100, "max_tokens": 1}
    server.ask("POST", "/v1/completions", body)
    usage = server.ask("POST", "/v1/completions", body)[2]["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 96}
    salted = server.ask("POST", "/v1/completions", {**body, "cache_salt": "another"})[2]["usage"]
    assert salted["prompt_tokens_details"] == {"cached_tokens": 0}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "body"),
        (b"[1]", "body"),
        (b"\xff\xfe", "body"),
        (b"[" * 100_000, "body"),
        (b'{"model": "m"}', "prompt"),
        (b'{"model": "m", "prompt": "\\ud800"}', "body"),
        (b'{"model": "m", "prompt": [1], "max_tokens": 1e400}', "max_tokens"),
        (b'{"model": "m", "prompt": [1], "temperature": NaN}', "temperature"),
        (b'{"model": "m", "prompt": [1], "logit_bias": {"1": ' + b"9" * 4300 + b"}}", "from -100 to 100"),
        (b'{"model": "m", "prompt": [1], "logit_bias": {"1": ' + b"9" * 9000 + b"}}", "body"),
        (b'{"model": "m", "prompt": [1], "stream": true, "stream_options": {"x": 1}}', "stream_options.x"),
    ],
    ids=lambda found: found[:60].decode(errors="replace") if isinstance(found, bytes) else found,
)
def test_wrong_bodies_are_explained(server: Served, body: bytes, words: str) -> None:
    status, _, found = server.ask("POST", "/v1/completions", body)
    assert status == 400
    assert words in found["error"]["message"]
    assert found["error"]["type"] == "invalid_request_error"


def test_browsers_let_pages_of_chosen_origins_use_the_server(server: Served, folder: Path) -> None:
    page, other = "http://localhost:3000", "http://evil"

    def allowed(where: Served, origin: str, method: str = "OPTIONS") -> str | None:
        """The origin that the server allows, for a page of this one."""
        headers = {
            "Origin": origin,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization",
        }
        with closing(where.connect()) as connection:
            connection.request(method, "/v1/completions", b"{", headers)
            response = connection.getresponse()
            response.read()
            return response.headers["access-control-allow-origin"]

    assert allowed(server, page) is None
    with served(folder, "--allow-origin", "HTTP://localhost:3000/", "--allow-origin", "https://x.org") as some:
        assert [allowed(some, page, method) for method in ("OPTIONS", "POST")] == [page, page]
        assert [allowed(some, other, method) for method in ("OPTIONS", "POST")] == [None, None]


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("GET", "/nothing", None, 404),
        ("GET", "/v1/completions", None, 405),
        ("POST", "/v1/completions", b" " * ((4 << 20) + 1), 413),
    ],
    ids=["path", "method", "size"],
)
def test_other_errors_have_the_same_form(
    server: Served, method: str, path: str, body: bytes | None, expected: int
) -> None:
    status, headers, found = server.ask(method, path, body)
    assert (status, set(found["error"])) == (expected, {"message", "type", "param", "code"})
    assert headers["x-request-id"]
    assert expected != 405 or headers["allow"] == "POST"


def test_a_request_keeps_the_id_that_it_has(server: Served) -> None:
    ids = []
    for given in ({}, {}, {"X-Request-Id": "mine"}, {"X-Request-Id": "x" * 1000}):
        with closing(server.connect()) as connection:
            connection.request("GET", "/health", headers=given)
            ids.append(connection.getresponse().headers["x-request-id"])
    assert ids[2] == "mine"
    assert len(set(ids)) == 4
    assert all(len(each) == 32 for each in (ids[0], ids[1], ids[3]))


def test_a_small_cache_bounds_requests(tight: Served) -> None:
    most = 128
    assert tight.ask("GET", "/v1/models/m")[2]["max_model_len"] == most
    chat = {"model": "m", "messages": [{"role": "user", "content": "x" * 20}], "ignore_eos": True}
    found = tight.ask("POST", "/v1/chat/completions", chat)[2]
    assert found["usage"]["total_tokens"] == most
    completion = {"model": "m", "prompt": [1] * 120, "ignore_eos": True}
    assert tight.ask("POST", "/v1/completions", completion)[2]["usage"]["total_tokens"] == most
    for more in ({"max_tokens": 9}, {"prompt": [1] * 129}):
        status, _, found = tight.ask("POST", "/v1/completions", completion | more)
        assert (status, found["error"]["code"]) == (400, "context_length_exceeded")


def test_answers_that_were_driven_out_are_those_of_the_model_alone(tight: Served) -> None:
    prompts = [[1, 2, 3], [4, 5, 6]]
    asked = {"model": "m", "prompt": prompts, "max_tokens": 70, "temperature": 0, "ignore_eos": True}
    before = tight.metric("preemptions_total")
    found = tight.ask("POST", "/v1/completions", asked)[2]
    assert tight.metric("preemptions_total") > before
    assert [each["token_ids"] for each in found["choices"]] == [
        list(greedy(CONFIG, tuple(each), 70, None)) for each in prompts
    ]


def test_clients_that_leave_free_their_blocks(slow: Path) -> None:
    with served(slow) as server:
        for client in [open_stream(server, prompt=[i] * 40) for i in range(20)]:
            client.close()
        whole = [server.connect() for _ in range(5)]  # not streams: they leave while they wait
        for each in whole:
            body = json.dumps({**ASK, "stream": False})
            each.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        stayed = open_stream(server, max_tokens=60)
        for each in whole:
            each.close()
        server.wait_for("requests_running", 1)
        assert b"[DONE]" in rest_of(stayed)
        server.wait_for("cache_blocks_used", 0)
        assert server.metric(r'requests_total\{finish="cancelled"}') == 25
        assert server.ask("GET", "/health")[0] == 200


def test_too_many_requests_get_429(slow: Path) -> None:
    with served(slow, "--max-running", "2", "--max-waiting", "2") as server:
        clients = [open_stream(server) for _ in range(2)]
        waiting = [server.connect() for _ in range(2)]
        for each in waiting:
            each.request(
                "POST",
                "/v1/completions",
                json.dumps({**ASK, "max_tokens": 1}),
                {"Content-Type": "application/json"},
            )
        server.wait_for("requests_waiting", 2)
        status, headers, found = server.ask("POST", "/v1/completions", ASK)
        assert status == 429
        assert int(headers["retry-after"]) >= 1
        assert found["error"]["code"] == "overloaded"
        for each in clients:
            each.close()
        assert [each.getresponse().status for each in waiting] == [200, 200]
        for each in waiting:
            each.close()
        assert server.ask("POST", "/v1/completions", {**ASK, "max_tokens": 1})[0] == 200


def test_sigterm_finishes_what_is_open(slow: Path) -> None:
    with served(slow) as server:
        client = open_stream(server, max_tokens=60)
        idle = server.connect()
        idle.request("GET", "/health")
        idle.getresponse().read()
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        with pytest.raises(ConnectionError):
            server.ask("GET", "/health")
        idle.close()
        data = rest_of(client)
        assert data.count(b'"text"') == 59
        assert b"[DONE]" in data
        assert server.process.wait(timeout=30) == 0


def test_a_second_signal_waits_for_no_client(slow: Path) -> None:
    """It matters from Python 3.12 on: there a server is closed only when its clients are gone."""
    with served(slow) as server, socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert server.ask("GET", "/health")[0] == 200  # so the server has the other connection, too
        for _ in range(2):
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.5)
        assert server.process.wait(timeout=10) == 0


def test_requests_that_take_too_long_to_drain_are_told(slow: Path) -> None:
    with served(slow, "--drain-seconds", "0.2") as server:
        client = open_stream(server)
        server.process.send_signal(signal.SIGTERM)
        assert b"shutting down" in rest_of(client)
        assert server.process.wait(timeout=30) == 0


def test_a_killed_engine_is_started_again(slow: Path) -> None:
    with served(slow) as server:
        clients = [open_stream(server, prompt=[i]) for i in range(3)]
        found: list[int] = []

        def whole() -> None:
            found.append(server.ask("POST", "/v1/completions", {**ASK, "stream": False})[0])

        thread = threading.Thread(target=whole)
        thread.start()
        server.wait_for("requests_running", 4)
        hidden = (slow / "reference.json").rename(slow / "hidden.json")  # it does not start again meanwhile
        try:
            server.engine.kill()
            for client in clients:
                assert b"killed by SIGKILL" in rest_of(client)
            thread.join()
            assert found == [500]
            assert server.metric(r'http_errors_total\{status="500"\}') == 4
            status, headers, answer = server.ask("POST", "/v1/completions", ASK)
            assert (status, headers["retry-after"], answer["error"]["code"]) == (503, "1", "unavailable")
            assert server.ask("GET", "/health")[::2] == (503, {"status": "starting"})
        finally:
            hidden.rename(slow / "reference.json")
        end = time.monotonic() + 30
        while server.ask("GET", "/health")[0] != 200:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert server.ask("POST", "/v1/completions", {**ASK, "max_tokens": 3, "stream": False})[0] == 200
        assert server.metric("engine_restarts_total") == 1
        assert server.metric("cache_blocks_used") == 0


def test_a_killed_server_takes_its_engine_along(slow: Path) -> None:
    with served(slow) as server:
        engine = server.engine
        server.process.kill()
        engine.wait(timeout=20)


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_server_that_cannot_start_says_why(folder: Path, tmp_path: Path, taken: int) -> None:
    fails(1, "serve", folder, "--port", str(taken), words=("in use", str(taken), "--port"))
    fails(1, "serve", tmp_path / "no.collage", "--port", "0", words=("no.collage",))
    fails(1, "serve", tmp_path, "--port", "0", words=("one compiled decoder",))
    (tmp_path / "model.onnx").touch()
    fails(1, "serve", tmp_path, "--port", "0", words=("is not compiled", f"compile-decoder {tmp_path} -o"))
    fails(1, "serve", folder, "--port", "0", "--cache-blocks", str(10**12), words=("fit into",))
    fails(2, "serve", folder, "--port", "0", "--cache-blocks", "0", words=("--cache-blocks",))
    fails(1, "serve", folder, "--port", "0", "--cache", "bfloat16", words=("no cache in bfloat16",))
    fails(2, "serve", folder, "--host", "a..b", words=("--host", "a..b", "no name of a host"))
    fails(2, "serve", folder, "--processes", "4", words=("--processes is for --parallel",))
    fails(2, "serve", folder, "--replicas", "2", "--cluster", "ray://blue:10001", words=("auto",))
    small = write_folder(tmp_path / "small", replace(CONFIG, vocabulary=100))
    fails(1, "serve", small, "--port", "0", words=("259 tokens", "100", "--tokenizer"))
    named = write_folder(tmp_path / "named", CONFIG, tokenizer=False)
    fails(
        2,
        "serve",
        folder,
        "--port",
        "0",
        "--tokenizer",
        named,
        words=(str(named), "tokenizer.json", "--tokenizer"),
    )
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "reference.json").write_text('{"widht": 3}')
    fails(1, "serve", tmp_path / "bad", "--port", "0", words=("describes no decoder", "widht"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--drain-seconds", "inf"), ("--drain-seconds", "inf")),
        (("--itl-target", "nan"), ("itl_target_ms", "nan")),
        (("--allow-origin", "localhost:3000"), ("localhost:3000", "http://localhost:3000")),
        (("--policy", "orca", "--itl-target", "5"), ("orca", "no target")),
    ],
    ids=" ".join,
)
def test_options_without_a_meaning_are_refused(
    folder: Path, taken: int, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    fails(2, "serve", folder, "--port", str(taken), *options, words=words)


def test_nobody_connects_before_the_model_is_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The port is taken by then, unless another server that loads has it, too, and is the first to be ready."""
    start = Front.start
    with bound("127.0.0.1", 0) as other:
        address = other.getsockname()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)

        async def loaded(front: Front) -> ModelReady:
            found = await start(front)
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(address)
            other.listen()
            return found

        monkeypatch.setattr(Front, "start", loaded)
        fails(1, "serve", folder, "--port", str(address[1]), words=("in use", str(address[1]), "--port"))
        socket.create_connection(address).close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_what_is_sent_waits_for_no_acknowledgement(folder: Path, host: str) -> None:
    """Otherwise each small answer on a kept connection takes 40 ms more, and tokens of a stream arrive together."""
    if host == "::1" and not _has_ipv6():
        pytest.skip("this machine has no IPv6")
    found: list[int] = []

    def look(said: str) -> None:
        port = int(said.split("/v1")[0].rpartition(":")[2])
        try:
            with closing(http.client.HTTPConnection(host, port, timeout=60)) as client:
                client.request("GET", "/health")
                client.getresponse().read()
                for each in psutil.Process().net_connections("tcp"):
                    if each.laddr.port == port and each.status == psutil.CONN_ESTABLISHED:
                        with socket.socket(fileno=os.dup(each.fd)) as accepted:
                            found.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    asker: list[threading.Thread] = []

    def listening(said: str) -> None:
        asker.append(threading.Thread(target=look, args=(said,)))
        asker[0].start()

    run_server(ServerOptions(folder, EngineOptions(), host, port=0), listening)
    asker[0].join()
    assert found == [1]


def _has_ipv6() -> bool:
    try:
        bound("::1", 0).close()
    except CollageError:
        return False
    return True


def test_missing_libraries_are_named(folder: Path) -> None:
    code = (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('starlette', 'uvicorn'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        "from collage.cli.main import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code, "serve", str(folder)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1
    assert "the server needs starlette, uvicorn: pip install 'collage-compiler[serve]'" in done.stderr
