"""`scripts/serve_soak`, with few clients and for seconds: what it looks at holds."""

from __future__ import annotations

import subprocess
import sys

import pytest

from scripts.lib import ROOT
from scripts.lib.serve_soak import RUNS

pytestmark = pytest.mark.usefixtures("needs_server")


def test_a_short_soak() -> None:
    sizes = ["--clients", "40", "--seconds", "4", "--requests", "100", "--waiting", "4"]
    command = [sys.executable, str(ROOT / "scripts" / "serve_soak"), *sizes]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=240)
    assert not done.returncode and done.stdout.endswith("OK\n"), done.stdout + done.stderr
    assert all(f"{name}: " in done.stdout for name in RUNS)
    assert "400: " in done.stdout and "429: " in done.stdout
