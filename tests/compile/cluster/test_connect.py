"""What can be wrong with a cluster is one line, which is there within seconds."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

import pytest

import collage
from collage.cluster.connect import import_ray
from collage.cluster.trial import failure
from collage.errors import ClusterError
from tests.helpers.cli.helpers import fails
from tests.helpers.models import elementwise_net


def test_without_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ClusterError, match=r"^a cluster needs Ray, .*: pip install 'collage-compiler\[cluster\]'\.$"):
        import_ray()
    with pytest.raises(ClusterError, match="pip install"):
        collage.compile(elementwise_net(), db=tmp_path / "db.sqlite", progress=False, cluster="local")


def test_a_trial_that_hangs_is_ended() -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        started = time.monotonic()
        assert failure(address, 2.0) == "no Ray answers there within 2 s"
        assert time.monotonic() - started < 20.0


def test_nobody_answers(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ClusterError, match=rf"^the cluster at .*:{port} does not answer: .* refused\. Start Ray"):
        collage.compile(elementwise_net(), db=tmp_path / "db.sqlite", progress=False, cluster=f"127.0.0.1:{port}")


def test_command_line(network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "m.collage"
    fails(2, "compile", network, "-o", out, "--cluster", "head", words=("head", "HOST:PORT"))
    monkeypatch.setitem(sys.modules, "ray", None)
    fails(1, "compile", network, "-o", out, "--cluster", "auto", words=("'collage-compiler[cluster]'",))
    assert not out.exists()


@pytest.fixture
def network(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    path.write_bytes(elementwise_net().SerializeToString())
    return path
