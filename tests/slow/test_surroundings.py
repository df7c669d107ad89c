"""Commands and services connect to nobody, leave nothing but what docs/usage.md names, and need no home."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import onnx
import pytest

from collage.cli.main import main
from collage.core.surroundings import temporary_cache
from scripts.lib.decoders.build import decoder
from scripts.lib.decoders.shape import NAMED, small
from tests.helpers.models import conv_net
from tests.helpers.serve.fixtures import LIBRARIES
from tests.helpers.serve.served import served

ROOT = Path(__file__).parents[2]
CHOICES = ("ORT_DISABLE_TELEMETRY", "RAY_USAGE_STATS_ENABLED", "HF_HUB_DISABLE_TELEMETRY", "DO_NOT_TRACK")
OF_CI = ("CI", "TF_BUILD", "JENKINS_URL")
"""If one of these is set, some libraries report nothing by themselves."""
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")

DECODER = (
    *("compile-decoder", "lm.onnx", "-o", "lm.collage"),
    *("--buckets", "1", "--threads", "1", "--quick"),
)
COMMANDS = (
    ("compile", "net.onnx", "-o", "net.collage", "--quick", "--backends", "openvino"),
    DECODER,
    ("run", "net.collage", "--random", "--output-dir", "out"),
    ("show", "net.collage", "--html", "net.html"),
    ("verify", "net.collage"),
    ("bench", "net.onnx", "--module", "net.collage"),
    ("backends",),
    ("db", "stats"),
    ("doctor",),
    ("new-backend", "mine", "--output", "mine"),
    ("check-backend", "onnxruntime", "--only", "available", "--only", "registration"),
    ("graphpipe", "--help"),
    ("windtunnel", "--help"),
)
SERVICE = """
import sys
import collage
collage.load(sys.argv[1]).bind()()
assert "openvino" in sys.modules
import onnxruntime
"""
PLUG_IN = """
import collage
collage.builtin_registry()
import openvino
"""

_MAKE = "openat|open|creat|mkdir|mkdirat|rename|renameat|renameat2|link|linkat|symlink|symlinkat|mknod|mknodat"
_CALL = re.compile(rf"\b(?:({_MAKE})|connect|sendto)\((.*)")


@dataclass(frozen=True)
class Sandbox:
    """A folder with models to compile, and the folders of a user."""

    work: Path
    home: Path
    temporary: Path

    def python(self, *arguments: str, before: Sequence[str] = ()) -> str:
        """Run Python there, after what ``before`` does, and return its output; it must end with status 0."""
        command = [*before, sys.executable, *arguments]
        done = subprocess.run(command, cwd=self.work, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def serve(self, *, before: Sequence[str] = ()) -> None:
        """Serve the decoder, ask for tokens, and end the server."""
        with served(self.work / "lm.collage", before=before) as server:
            asked = {"model": "m", "prompt": [1, 2], "max_tokens": 3}
            assert server.ask("POST", "/v1/completions", asked)[0] == 200
            assert server.end() == 0


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Child processes have their folders there, and no choice of the user's."""
    for name in (*LIBRARIES, "openvino"):
        if find_spec(name) is None:
            pytest.skip(f"{name} is missing")

    found = Sandbox(*(tmp_path_factory.mktemp(each) for each in ("work", "home", "temporary")))
    onnx.save_model(conv_net(), str(found.work / "net.onnx"))
    onnx.save_model(decoder(small(NAMED["gpt2_124m"], 1)), str(found.work / "lm.onnx"))
    with pytest.MonkeyPatch.context() as patch:
        for name in (*CHOICES, *OF_CI, *PROXIES, "XDG_CACHE_HOME"):
            patch.delenv(name, raising=False)
        patch.setenv("HOME", str(found.home))
        patch.setenv("TMPDIR", str(found.temporary))
        patch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        patch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), os.environ["PYTHONPATH"])))
        yield found


@contextmanager
def proxy(patch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A proxy for child processes, which takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        for name in PROXIES:
            patch.setenv(name, f"http://127.0.0.1:{listener.getsockname()[1]}")
        patch.setenv("NO_PROXY", "")
        yield listener


def callers(listener: socket.socket) -> int:
    """How many have connected."""
    count = 0
    while True:
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            return count
        count += 1


def tracer(log: Path) -> Sequence[str]:
    """The command that logs whom a program calls and what files it makes, if it can be run here."""
    calls = f"trace=connect,sendto,{_MAKE.replace('|', ',')}"
    command = ("strace", "-f", "-qq", "--seccomp-bpf", "-e", calls, "-o", str(log))
    works = shutil.which("strace") and not subprocess.run([*command, "true"], capture_output=True).returncode
    return command if works else ()


def done_outside(log: Path, sandbox: Sandbox) -> list[str]:
    """Calls over a network, and files that were made but in the sandbox's folders."""
    own = tuple(f"{each}/" for each in (sandbox.work, sandbox.temporary, sandbox.home / ".cache"))
    found = []
    for line in log.read_text().splitlines() if log.exists() else ():
        call = _CALL.search(line)
        if call and not call[1]:
            found += [line] if "sa_family=AF_INET" in call[2] else []
        elif call and "= -1 " not in call[2] and (not call[1].startswith("open") or "O_CREAT" in call[2]):
            path = os.path.join(sandbox.work, re.findall(r'"([^"]*)"', call[2])[-1])
            found += [line] if not f"{path}/".startswith((*own, "/dev/", "/proc/")) else []
    return found


def test_nothing_leaves_the_machine_or_stays_on_it(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all commands, services, and programs of others that import a library after Collage."""
    assert {command[0] for command in COMMANDS} | {"serve"} == {*main.commands}
    log = tmp_path / "log"
    before = tracer(log)
    found: dict[str, object] = {}
    with proxy(monkeypatch) as listener:

        def note(program: str) -> None:
            stray = [
                str(each)
                for place in (sandbox.home, sandbox.temporary)
                for each in place.rglob("*")
                if each.is_file() and sandbox.home / ".cache" / "collage" not in each.parents
            ]
            wrong = callers(listener), stray, done_outside(log, sandbox)
            if any(wrong):
                found[program] = wrong

        for command in COMMANDS:
            sandbox.python("-m", "collage", *command, before=before)
            note(" ".join(command))
        for program in (SERVICE, PLUG_IN):
            sandbox.python("-c", program, "net.collage", before=before)
            note(program)
        sandbox.serve()
        note("serve")
    assert found == {}


@pytest.mark.parametrize("choice", ["0", "false", ""])
def test_the_users_choice_stands(choice: str, monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox) -> None:
    for name in CHOICES:
        monkeypatch.setenv(name, choice)
    sandbox.python("-c", f"import os, collage; assert {{os.environ[n] for n in {CHOICES}}} == {{{choice!r}}}")


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> Sequence[str]:
    """The command that makes its program that of a user without a name, as in a container, and without a home."""
    found = ("unshare", "--user", "--map-user=12345", "--map-group=12345")
    if not shutil.which("unshare") or subprocess.run([*found, "true"], capture_output=True).returncode:
        pytest.skip("this user may not make a namespace for users")
    monkeypatch.delenv("HOME")
    return found


def test_a_user_without_a_home(sandbox: Sandbox, tmp_path: Path, nobody: Sequence[str]) -> None:
    cache = sandbox.temporary / "collage-12345-cache"
    net, own = str(tmp_path / "net.collage"), ("--db", str(tmp_path / "db"))
    compile = ("compile", "net.onnx", "-o", net, "--quick", "--backends", "tvm,onnxruntime")
    sandbox.python("-m", "collage", *compile, *own, before=nobody)
    sandbox.python("-c", "import sys, collage; collage.load(sys.argv[1]).bind()()", net, before=nobody)
    sandbox.python("-m", "collage", "bench", "net.onnx", "--module", net, before=nobody)
    if not (sandbox.work / "lm.collage").exists():
        sandbox.python("-m", "collage", *DECODER, *own, before=nobody)
    sandbox.serve(before=nobody)
    assert list(cache.iterdir()) == [] and cache.stat().st_mode & 0o777 == 0o700
    sandbox.python("-m", "collage", *compile, before=nobody)
    assert (cache / "collage" / "measurements.sqlite").stat().st_size


def test_a_folder_that_others_may_write_to_is_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first = temporary_cache()
    assert first == temporary_cache()
    first.chmod(0o777)
    assert temporary_cache() != first
    first.rmdir()
    first.symlink_to(tmp_path)
    other = temporary_cache()
    assert other != first and other.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o500, 0o000])
def test_a_home_that_cannot_be_written(
    mode: int, sandbox: Sandbox, tmp_path: Path, nobody: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that can be read, and one in a folder that cannot even be entered."""
    monkeypatch.setenv("HOME", str(tmp_path if mode else tmp_path / "home"))
    tmp_path.chmod(mode)
    code = "from collage.measure_db.database_file import *; print(DatabaseFile().path)"
    assert str(sandbox.temporary / "collage-12345-cache") in sandbox.python("-c", code, before=nobody)
