"""The recipes of the examples, in environments of their own. They take minutes, and need a package index."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import collage
from tests.helpers.models import conv_net

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "examples" / "fastapi"


def run(folder: Path, *command: str | Path) -> str:
    done = subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def post(port: int, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/predict", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    return json.loads(urllib.request.urlopen(request, timeout=30).read())


@pytest.mark.timeout(1200)
def test_the_container_file(tmp_path: Path) -> None:
    """Its lines as they are, but for this checkout's wheel and the address, in an environment instead of an image."""
    lines = (RECIPE / "Dockerfile").read_text()
    (install,) = re.findall(r"^RUN pip install --no-cache-dir (.*)$", lines, re.MULTILINE)
    command = json.loads(re.findall(r"^CMD (.*)$", lines, re.MULTILINE)[0])
    run(ROOT, sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, ".")
    (wheel,) = tmp_path.glob("collage_compiler-*.whl")
    packages = [word.replace("collage-compiler", str(wheel)) for word in shlex.split(install)]
    run(tmp_path, sys.executable, "-m", "venv", "own")
    run(tmp_path, "own/bin/python", "-m", "pip", "install", "-q", *packages)

    model = conv_net()
    collage.compile(model, budget_s=10, db=tmp_path / "db", progress=False).save(tmp_path / "model.collage")
    shutil.copy(RECIPE / "app.py", tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command[command.index("--host") + 1], command[command.index("--port") + 1] = "127.0.0.1", str(port)
    server = subprocess.Popen([tmp_path / "own" / "bin" / command[0], *command[1:]], cwd=tmp_path)
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString())
        (given,) = session.get_inputs()
        x = np.random.default_rng().standard_normal(given.shape).astype(np.float32)
        deadline = time.monotonic() + 60
        while True:
            try:
                found = post(port, {given.name: x.tolist()})
                break
            except (urllib.error.URLError, ConnectionError):
                assert time.monotonic() < deadline and server.poll() is None
                time.sleep(0.2)
        for name, wanted in zip(found, session.run(None, {given.name: x}), strict=True):
            np.testing.assert_allclose(found[name], wanted, rtol=1e-4, atol=1e-5)
        with pytest.raises(urllib.error.HTTPError) as refused:
            post(port, {given.name: [[1.0]]})
        assert refused.value.code == 422 and b"shape" in refused.value.read()
    finally:
        server.terminate()
        server.wait(30)


@pytest.mark.timeout(1800)
def test_a_release(tmp_path: Path) -> None:
    """The wheel for this Python, in new environments: a model with an open batch within a minute."""
    figures = tmp_path / "figures.json"
    script = [sys.executable, ROOT / "scripts" / "release", "--python", sys.executable]
    run(tmp_path, *script, "--out", tmp_path / "dist", "--json", figures)
    (found,) = json.loads(figures.read_text()).values()
    assert found["runtime_mb"] < 40


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "versions",
    [("onnxruntime==1.23.*", "openvino==2026.3.*"), ("onnxruntime==1.32.*", "openvino==2026.4.*")],
    ids=["oldest", "newest"],
)
def test_both_ends_of_the_ranges(versions: tuple[str, ...], tmp_path: Path) -> None:
    onnx.save_model(conv_net(), str(tmp_path / "net.onnx"))
    run(ROOT, sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, ".")
    (wheel,) = tmp_path.glob("collage_compiler-*.whl")
    run(tmp_path, sys.executable, "-m", "venv", "own")
    run(tmp_path, "own/bin/python", "-m", "pip", "install", "-q", f"{wheel}[compile]", *versions)
    run(tmp_path, "own/bin/collage", "compile", "net.onnx", "-o", "net.collage", "--budget", "20", "--db", "db")
    run(tmp_path, "own/bin/collage", "run", "net.collage", "--random")
    found = json.loads(run(tmp_path, "own/bin/collage", "show", "net.collage", "--json"))
    for each in versions:
        name, _, version = each.partition("==")
        assert found["versions"][name].startswith(version.rstrip("*"))
