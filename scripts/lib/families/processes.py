"""The processes of the sweep: one that exports, and one that checks, each in forks of itself. None outlives it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from scripts.lib import ROOT
from scripts.lib.end_group import end_group
from scripts.lib.families.errors import PackagesMissingError
from scripts.lib.families.names import PACKAGES

_TAIL = 300
_FAULT = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b.*", re.MULTILINE)


class Server:
    """A process that does what it is asked to do in forks of itself, and the file that it prints errors to."""

    def __init__(self, python: str, module: str, scratch: Path) -> None:
        """Start it. Raises OSError where the interpreter cannot be run."""
        self._errors = TemporaryFile()  # noqa: SIM115 - closed by end
        try:
            self._process = _started([python, "-m", module], scratch, self._errors)
        except OSError:
            self._errors.close()
            raise

    def first(self) -> Mapping[str, Any]:
        """The answer that it gives without being asked. Raises EOFError where the process has ended."""
        return self._answer()

    def ask(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer to a request. Where a fork has ended without one, it has ``ended``, with what the fork said last.

        Raises EOFError where the process itself has ended.
        """
        assert self._process.stdin is not None
        start = self._errors.seek(0, os.SEEK_END)
        self._process.stdin.write((json.dumps(request) + "\n").encode())
        self._process.stdin.flush()
        answer = self._answer()
        return {"ended": f"{answer['ended']}; {self.said(start)}"} if "ended" in answer else answer

    def said(self, start: int = 0) -> str:
        """The last error that the process or a fork has told since then, or the end of what it has said."""
        self._errors.seek(start)
        text = self._errors.read().decode(errors="replace")
        last = (_FAULT.findall(text) or [text])[-1]
        return " ".join(last.split())[-_TAIL:] or "it said nothing"

    def end(self) -> None:
        """End the process and all that it has started in its group."""
        end_group(self._process, self._errors)

    def _answer(self) -> Mapping[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EOFError
        answer: Mapping[str, Any] = json.loads(line)
        return answer


@contextmanager
def exporters(python: str, scratch: Path) -> Iterator[tuple[Server, Mapping[str, str]]]:
    """The process that exports, run by that interpreter, and the versions of its packages.

    Raises PackagesMissingError where the interpreter cannot be run, or lacks packages, or cannot import them.
    """
    try:
        server = Server(python, "scripts.lib.families.export", scratch)
    except OSError as error:
        raise PackagesMissingError(f"{python} cannot be run: {error.strerror}.") from error
    try:
        try:
            first = server.first()
        except EOFError as error:
            raise PackagesMissingError(f"{python} does not run the exporters: {server.said()}") from error
        versions: Mapping[str, str] = first["versions"]
        if missing := [name for name, found in versions.items() if not found]:
            raise PackagesMissingError(f"{python} has no {', '.join(missing)}. {how_to_install()}")
        if first["problem"]:
            raise PackagesMissingError(f"{python} cannot import: {first['problem']}. {how_to_install()}")
        yield server, versions
    finally:
        server.end()


@contextmanager
def checks(scratch: Path) -> Iterator[Server]:
    """The process that compiles and compares, run by this interpreter."""
    server = Server(sys.executable, "scripts.lib.families.check", scratch)
    try:
        server.first()
        yield server
    finally:
        server.end()


def how_to_install() -> str:
    """The commands that make an environment for the exporters."""
    packages = " ".join(f"'{name}{versions}'" for name, versions in PACKAGES.items())
    return (
        "They conflict with Collage's own packages, so give them an environment of their own: python3 -m venv peers && "
        f"peers/bin/pip install {packages} && scripts/decoder_families --exporter-python peers/bin/python"
    )


def _started(command: Sequence[str], scratch: Path, errors: IO[bytes]) -> subprocess.Popen[bytes]:
    """A process in a group of its own, whose temporary files are in ``scratch``, and that downloads nothing.

    Collage does not wait for a quiet machine there, since how fast decoders are does not matter.
    """
    more = {
        "TMPDIR": str(scratch),
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(scratch / "hub"),
        "COLLAGE_BUSY_LIMIT": "1",
    }
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **more},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        start_new_session=True,  # so that Ctrl-C reaches the sweep alone, which ends all of the group
    )
