"""Models by ``hf://``, from a server that stands in for the Hugging Face Hub."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import onnx
import pytest

import collage
from collage.frontend.read.hub import downloaded
from tests.helpers.models import conv_net, elementwise_net

pytest.importorskip("huggingface_hub", reason="huggingface_hub is missing: pip install huggingface_hub")

ROOT = Path(__file__).resolve().parents[3]
SHA = "5" * 40


@dataclass
class Hub:
    """Repositories: their files by path. ``asked`` are the requests for files that were answered."""

    repositories: dict[str, dict[str, bytes]]
    asked: list[str] = field(default_factory=list)
    url: str = ""

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            name, revision = "/".join(parts[2:4]), parts[5] if len(parts) > 5 else "main"
            if name not in self.repositories:
                return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"
            if revision not in ("main", SHA):
                return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
            files = [{"rfilename": each} for each in self.repositories[name]]
            return (
                200,
                {"Content-Type": "application/json"},
                json.dumps({"id": name, "sha": SHA, "siblings": files}).encode(),
            )
        name, file = "/".join(parts[:2]), "/".join(parts[4:])
        if file not in self.repositories.get(name, {}):
            return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": SHA}, b""
        data = self.repositories[name][file]
        return 200, {"X-Repo-Commit": SHA, "ETag": f'"{hashlib.sha256(data).hexdigest()}"'}, data


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("apart")
    onnx.save_model(
        conv_net(), str(folder / "model.onnx"), save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    small = elementwise_net().SerializeToString()
    found = Hub(
        {
            "we/small": {
                "README.md": b"",
                "model.onnx": small,
                "model.safetensors": b"x",
                "onnx/model_int8.onnx": small,
            },
            "we/apart": {f"onnx/{each}": (folder / each).read_bytes() for each in ("model.onnx", "weights.bin")}
            | {"onnx/other.bin": b"x"},
            "we/several": {"onnx/a.onnx": small, "b.onnx": small},
            "we/none": {"model.safetensors": b"x"},
        }
    )

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            status, headers, data = found.answer(path)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)
                if "/resolve/" in path:
                    found.asked.append(path.partition("/resolve/")[2].partition("/")[2])

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found.url = f"http://127.0.0.1:{server.server_port}"
        yield found
        server.shutdown()


@pytest.fixture
def environment(hub: Hub, tmp_path: Path) -> dict[str, str]:
    hub.asked.clear()
    return {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_TELEMETRY": "1"}


def command(environment: dict[str, str], *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "collage", *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )


def compiles(environment: dict[str, str], address: str, folder: Path) -> collage.CompiledModule:
    options = ("--quick", "--budget", "3", "--quiet", "--threads", "1", "--backends", "onnxruntime,tvm")
    done = command(environment, "compile", address, "-o", folder / "m.collage", "--db", folder / "db", *options)
    assert done.returncode == 0, done.stderr
    module = collage.load(folder / "m.collage")
    assert isinstance(module, collage.CompiledModule)
    return module


def check(module: collage.CompiledModule, model: onnx.ModelProto) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString())
    feeds = {
        each.name: np.random.default_rng().normal(size=each.shape).astype(np.float32) for each in session.get_inputs()
    }
    for found, wanted in zip(module.run(feeds).values(), session.run(None, feeds), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_the_file_that_a_repository_has(hub: Hub, environment: dict[str, str], tmp_path: Path) -> None:
    check(compiles(environment, "hf://we/small", tmp_path), elementwise_net())
    assert hub.asked == ["model.onnx"]
    check(compiles(environment, "hf://we/small", tmp_path), elementwise_net())
    assert hub.asked == ["model.onnx"], "it is in the cache"


def test_external_data(hub: Hub, environment: dict[str, str], tmp_path: Path) -> None:
    check(compiles(environment, "hf://we/apart@main", tmp_path), conv_net())
    assert hub.asked == ["onnx/model.onnx", "onnx/weights.bin"]


def test_from_python(hub: Hub, environment: dict[str, str], tmp_path: Path) -> None:
    code = f"""
import collage
options = dict(quick=True, budget_s=3.0, db={str(tmp_path / "db")!r}, threads=1, backends="onnxruntime,tvm")
print(collage.compile("hf://we/small/onnx/model_int8.onnx", progress=False, **options).outputs)
print(collage.InferenceSession("hf://we/several/b.onnx", **options).get_outputs()[0].name)
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "float32[" in done.stdout and hub.asked == ["onnx/model_int8.onnx", "b.onnx"]


@pytest.mark.parametrize(
    ("address", "status", "words"),
    [
        ("hf://we/several", 2, "has several models: b.onnx, onnx/a.onnx. Name one, such as hf://we/several/b.onnx"),
        ("hf://we/none", 1, "we/none has no .onnx file"),
        ("hf://we/missing", 1, "there is no such repository, or it is not open to you"),
        ("hf://we/small/other.onnx", 1, "the repository has no such file"),
        ("hf://we/small@v9", 1, "the repository has no such revision"),
        ("hf://we/small/README.md", 2, "names no .onnx file"),
        ("hf://small", 2, "names no repository"),
    ],
)
def test_what_is_wrong(
    hub: Hub, environment: dict[str, str], tmp_path: Path, address: str, status: int, words: str
) -> None:
    done = command(environment, "compile", address, "-o", tmp_path / "m.collage")
    assert done.returncode == status and words in done.stderr
    assert len(done.stderr.splitlines()) == 1 and not done.stdout and not hub.asked
    assert not (tmp_path / "m.collage").exists()


def test_nobody_answers(environment: dict[str, str], tmp_path: Path) -> None:
    done = command(
        {**environment, "HF_ENDPOINT": "http://127.0.0.1:9"}, "compile", "hf://we/small", "-o", tmp_path / "m"
    )
    assert done.returncode == 1 and "hf://we/small cannot be downloaded" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(collage.ModelError, match=r"pip install 'collage-compiler\[hub\]', or download the file"):
        downloaded("hf://we/small")
