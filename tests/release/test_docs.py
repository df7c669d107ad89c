"""The site builds without a warning, and every command of its pages runs. It takes half an hour on two cores.

``tests/slow/cli/test_readme.py`` runs the Python of the pages, and ``tests/unit/docs`` follows their links.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from tests.helpers.documents import PAGES, ROOT, commands, make_files, name_of

NOT_RUN = {
    r"^pip install ": "needs a package index; test_wheel.py and test_recipes.py install",
    r"^scripts/(demo|test)$": "installs this checkout, which the tests run in",
    r"^optimum-cli ": "needs the Hugging Face Hub; the test writes such a folder",
    r"hf://": "needs the Hugging Face Hub; tests/compile/frontend/test_hub.py has a stand-in for it",
    r"ray start|--cluster auto|--replicas": "needs Ray; tests/slow/cluster and tests/slow/serve run it on one node",
}
"""Commands that are not run, by patterns, and why."""
ELSEWHERE = ("docs/backend-tutorial.md",)
"""Pages whose commands have a test of their own, tests/release/test_backend_tutorial.py."""
NEEDED = {
    "README.md": "lightgbm skl2onnx torch",
    "docs/graphpipe.md": "torch",
    "docs/parallel.md": "torch",
    "docs/tables.md": "lightgbm skl2onnx",
    "docs/windtunnel.md": "skl2onnx torch",
}
"""What the commands of pages import besides what compiling needs."""
READY_S = 120.0


def run_it(line: str) -> bool:
    return not any(re.search(pattern, line) for pattern in NOT_RUN)


class Links(HTMLParser):
    """The targets of a page of the site."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.targets.append(value)
            elif name == "id" and value:
                self.ids.add(value)


@pytest.mark.timeout(600)
def test_the_site_builds_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    pytest.importorskip("myst_parser")
    pytest.importorskip("furo")
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "docs", "--out", tmp_path], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    pages = {path: Links(path.read_text(encoding="utf-8")) for path in tmp_path.rglob("*.html")}
    assert {path.stem for path in PAGES[1:]} <= {path.stem for path in pages}
    for path, page in pages.items():
        for target in page.targets:
            if re.match(r"https?://|mailto:|data:", target):
                continue
            name, _, anchor = target.partition("#")
            found = path.parent / name.partition("?")[0] if name else path
            assert found.exists(), (path.name, target)
            assert not anchor or found not in pages or anchor in pages[found].ids, (path.name, target)


def test_each_reason_is_one_of_a_command() -> None:
    lines = [line for page in PAGES for line in commands(page)]
    for pattern in NOT_RUN:
        assert any(re.search(pattern, line) for line in lines), pattern


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(map(run_it, commands(page))) and name_of(page) not in ELSEWHERE],
    ids=name_of,
)
def test_the_commands_of_a_page_run(page: Path, tmp_path: Path) -> None:
    """One after another, in a folder that has the files which they begin with. A server runs until the next one."""
    for needed in NEEDED.get(name_of(page), "").split():
        pytest.importorskip(needed)
    make_files(page, tmp_path)
    server: tuple[int, subprocess.Popen[str]] | None = None
    try:
        for line in filter(run_it, commands(page)):
            if line.startswith("collage serve "):
                stop(server)
                server = serve(line, tmp_path)
                continue
            if line.startswith("curl "):
                assert server is not None
                line = line.replace("curl ", "curl --fail --silent --show-error ").replace("8000", str(server[0]))
            done = subprocess.run(
                ["bash", "-c", in_checkout(line)],
                cwd=tmp_path,
                env=environment(tmp_path),
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    finally:
        stop(server)


def environment(folder: Path) -> Mapping[str, str]:
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    code = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    return {**os.environ, "PATH": path, "PYTHONPATH": code, "XDG_CACHE_HOME": str(folder / "cache")}


def in_checkout(line: str) -> str:
    return re.sub(r"^scripts/", f"{ROOT}/scripts/", line)


def serve(line: str, folder: Path) -> tuple[int, subprocess.Popen[str]]:
    """Start a server on a free port, and wait until it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [*re.sub(r" --port \d+", "", line).split(), "--port", str(port)]
    server = subprocess.Popen(command, cwd=folder, env=environment(folder), stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + READY_S
    while not any(answers(port, path) for path in ("/health", "/v2/health/ready")):
        if server.poll() is not None or time.monotonic() > deadline:
            server.kill()
            raise AssertionError(f"{line}\n{server.communicate()[1]}")
        time.sleep(0.2)
    return port, server


def answers(port: int, path: str) -> bool:
    try:
        return bool(urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5).status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def stop(server: tuple[int, subprocess.Popen[str]] | None) -> None:
    if server is not None:
        server[1].send_signal(signal.SIGTERM)
        errors = server[1].communicate(timeout=60)[1]
        assert server[1].returncode in (0, 143), errors


LISTS = {
    "compile": ("regions", "nodes", "best_so_far"),
    "bench": (),
    "run": ("outputs",),
    "backends": ("backends",),
    "doctor": ("checks",),
}
"""Lists of objects by command, whose names the page has as well."""


def names_in(found: Mapping[str, Any], lists: Sequence[str]) -> set[str]:
    """The names of an object, of the objects in its lists, and of what it has for each engine."""
    names = {*found}
    for name in lists:
        for each in found[name]:
            names |= {*each}
            for candidate in each.get("candidates", ()):
                names |= {*candidate}
    for name in ("engines", "ratios", "finalists"):
        for value in found.get(name, {}).values():
            names |= {*value} if isinstance(value, Mapping) else set()
    return names


@pytest.mark.timeout(600)
def test_the_page_on_json_has_all_names(tmp_path: Path) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / "docs" / "json.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    described = {word for code in re.findall(r"`([^`]+)`", text) for word in re.findall(r"\w+", code)}
    make_files(ROOT / "docs" / "budget.md", tmp_path)
    lines = {
        "compile": "compile model.onnx -o model.collage --budget 10 --quiet --json",
        "bench": "bench model.onnx --module model.collage --rounds 2 --quiet --json",
        "run": "run model.collage --random --json",
        "verify": "verify model.collage --json",
        "backends": "backends --json",
        "doctor": "doctor model.collage --json",
        "db stats": "db stats --json",
        "db list": "db list --json",
        "db export": "db export team.sqlite --json",
        "db import": "db import team.sqlite --json",
        "db prune": "db prune --json",
        "db verify": "db verify --json",
    }
    for name, line in lines.items():
        done = subprocess.run(
            ["collage", *line.split()], cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        missing = names_in(json.loads(done.stdout), LISTS.get(name, ())) - described
        assert not missing, (name, missing)


SHELLS = {
    "bash": ("", 'COMP_WORDS=(collage compile ""); COMP_CWORD=2; _collage_completion collage; echo "${COMPREPLY[@]}"'),
    "zsh": (
        "autoload -Uz compinit; compinit -u",
        'COMP_CWORD=2 COMP_WORDS="collage compile " _COLLAGE_COMPLETE=zsh_complete collage; test -n "$_comps[collage]"',
    ),
    "fish": ("", 'complete -C "collage compile "'),
}
"""What is run before and after the line for a shell. In zsh completion itself needs a terminal."""


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_with_the_line_for_it(shell: str, tmp_path: Path) -> None:
    if which(shell) is None:
        pytest.skip(f"{shell}: not installed")
    (tmp_path / "a.onnx").touch()
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    (line,) = re.findall(rf"^\| {shell}[^|]*\| `(.+?)` \| `~", text, re.MULTILINE)
    before, after = SHELLS[shell]
    script = "\n".join((before, line.replace("\\|", "|"), after))
    own = {**environment(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run([shell, "-c", script], cwd=tmp_path, env=own, capture_output=True, text=True)
    assert done.returncode == 0 and "a.onnx" in done.stdout, done.stderr
