"""What `collage serve` refuses before it loads a model, and a time line that cannot be written when it ends."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from collage.errors import UsageError
from collage.serve.http import worker
from collage.serve.http.front import Front
from collage.serve.http.messages import HEADER, EngineSetup, NoTrace
from collage.serve.http.options import ServerOptions
from collage.serve.options import EngineOptions
from tests.cli.helpers import fails
from tests.serve.served import CONFIG, Served, served, write_folder
from tests.serve.simulation import NullRunner


@pytest.mark.usefixtures("needs_server")
def test_a_folder_that_is_named_has_a_tokenizer(tmp_path: Path) -> None:
    """Without one, each text would be refused, and only token ids would be served."""
    folder = write_folder(tmp_path / "model", CONFIG, tokenizer=False)
    options = ServerOptions(folder, EngineOptions())
    Front(options)
    named = write_folder(tmp_path / "named", CONFIG)
    Front(replace(options, tokenizer=named))
    (named / "tokenizer.json").unlink()
    with pytest.raises(UsageError, match=r"has no tokenizer\.json"):
        Front(replace(options, tokenizer=named))
    fails(2, "serve", folder, "--port", "0", "--tokenizer", named, words=(str(named), "--tokenizer"))
    fails(
        *(2, "serve", folder, "--port", "0", "--tokenizer", named, "--replicas", "1"),
        words=(str(named), "--tokenizer"),
    )


def test_orca_keeps_no_prefixes() -> None:
    assert EngineOptions().keeps_prefixes and not EngineOptions(prefix_caching=False).keeps_prefixes
    assert not EngineOptions("orca").keeps_prefixes
    assert not EngineOptions("orca", prefix_caching=False).keeps_prefixes
    with pytest.raises(UsageError, match="no prefix caching"):
        EngineOptions("orca", prefix_caching=True)


def test_orca_with_prefix_caching_is_refused(folder: Path) -> None:
    options = ("--port", "0", "--policy", "orca", "--prefix-caching")
    fails(2, "serve", folder, *options, words=("orca", "no prefix caching"))


def end_without_its_folder(server: Served, trace: Path) -> str:
    """The lines that it writes at its end; its status must be 1."""
    trace.parent.rmdir()
    before = len(server.log.read_text())
    assert server.end() == 1
    return server.log.read_text()[before:]


def test_a_time_line_that_cannot_be_written_is_one_line(folder: Path, tmp_path: Path) -> None:
    trace = tmp_path / "traces" / "trace.json"
    trace.parent.mkdir()
    with served(folder, "--trace", str(trace)) as server:
        assert server.ask("POST", "/v1/completions", {"model": "m", "prompt": [1], "max_tokens": 2})[0] == 200
        (line,) = end_without_its_folder(server, trace).splitlines()
    assert line.startswith(f"collage: error: cannot write {trace}: No such file")


def test_the_engine_is_closed_without_its_time_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Closed()
    monkeypatch.setattr(worker, "open_runner", lambda *_: runner)
    monkeypatch.setattr(worker, "open_tokenizer", lambda _: None)
    setup = EngineSetup(Path("m"), EngineOptions(), Path("m"), trace=tmp_path / "none" / "trace.json")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        started = worker._started(setup, theirs)
        worker._end(setup, theirs, *started)
        message = worker._read(ours)
        assert isinstance(message, NoTrace) and "cannot write" in message.message
        assert ours.recv(HEADER.size) == b""
    assert runner.closed


class Closed(NullRunner):
    """A runner that knows whether it was closed."""

    closed = False

    def close(self) -> None:
        self.closed = True
