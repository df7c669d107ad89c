"""The device of a compile: which backends it leaves, and what is said where it cannot be used."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import collage
from collage.backends.base import Availability
from collage.backends.cuda_kernels import wheel
from collage.backends.devices import AUTO, backends_on
from collage.backends.registry import Registry
from collage.errors import UsageError
from collage.frontend.subgraph import Subgraph
from collage.graph.storage import HOST, PLAIN, Storage
from collage.kernel.options import BuildOptions, Variant
from tests.helpers.beside import TakeAll
from tests.helpers.compiler.null import NullBackend, chain
from tests.helpers.cuda_driver import Driver, no_driver, pretend

NPU = Storage("npu")


class OnHost(NullBackend):
    """Takes every operator, on the host."""

    def sources(self, options: BuildOptions) -> Sequence[Any]:
        return (TakeAll(),)


class OnNpu(OnHost):
    """Takes every operator, on a device, and copies its inputs there itself in a second variant."""

    device = "npu"

    def variants(self, subgraph: Subgraph, options: BuildOptions) -> Sequence[Variant]:
        return [Variant((NPU,), (NPU,)), Variant((PLAIN,), (NPU,))]


class Away(OnNpu):
    """Is not there."""

    def available(self) -> Availability:
        return Availability(reason="its board is not plugged in")


def registry(*backends: NullBackend) -> Registry:
    found = Registry()
    for each in backends:
        found.register(each)
    return found


def test_who_computes_where() -> None:
    both = registry(OnHost("host"), OnNpu("npu_kernels"))
    assert list(backends_on(AUTO, both, None)) == ["host", "npu_kernels"]
    assert list(backends_on(HOST, both, None)) == ["host"]
    assert list(backends_on("npu", both, None)) == ["host", "npu_kernels"]
    assert list(backends_on("npu", both, ["npu_kernels"])) == ["npu_kernels"]


@pytest.mark.parametrize(
    ("device", "names", "words"),
    [
        ("tpu", None, "unknown device: tpu. Valid: auto, cpu, npu."),
        (
            "cpu",
            ["npu_kernels", "host"],
            "npu_kernels would compute on npu, not on cpu: leave out --device cpu",
        ),
        ("npu", ["host"], r"your choice of backends leaves out all that do \(npu_kernels\)"),
    ],
)
def test_devices_that_cannot_be_used(device: str, names: list[str] | None, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        backends_on(device, registry(OnHost("host"), OnNpu("npu_kernels")), names)


def test_a_device_that_is_not_there() -> None:
    words = "computes on npu: away is not available .its board is not plugged in.. With --device cpu or auto the CPU"
    with pytest.raises(UsageError, match=words):
        backends_on("npu", registry(OnHost("host"), Away("away")), None)


def not_installed(name: str) -> str:
    raise metadata.PackageNotFoundError(name)


def no_library(name: str) -> Any:
    raise OSError(f"{name}: cannot open shared object file")


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (no_driver, "there is no NVIDIA driver"),
        (lambda name: Driver(0), "finds no GPU; let this process see one"),
        (lambda name: Driver(1, version=12080), "is for CUDA 12.8; install one for CUDA 13.0 or later"),
        (lambda name: Driver(1), "tvm_cuda is not available .NVRTC is not installed: pip install"),
    ],
)
def test_no_gpu_in_python(load: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, load)
    monkeypatch.setattr(metadata, "version", not_installed)
    monkeypatch.setattr(wheel, "load_library", no_library)  # cuBLAS and cuDNN may be installed here
    with pytest.raises(UsageError, match=words) as raised:
        collage.compile(chain(), device="cuda", db=tmp_path / "db.sqlite")
    assert "\n" not in str(raised.value)
    assert str(raised.value).startswith("nothing here computes on cuda: ")
    assert not list(tmp_path.iterdir())
