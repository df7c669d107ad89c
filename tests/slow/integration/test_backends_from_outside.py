"""Backends from outside the package: one that is fastest where it applies, and four hostile ones."""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import collage
from collage.errors import RegistrationError
from tests.helpers.models import elementwise_net

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def fft(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield __import__("fft_convolution")
    sys.modules.pop("fft_convolution", None)


def test_the_fft_example_is_chosen_for_the_long_filter(fft: Any, tmp_path: Path) -> None:
    registry = collage.builtin_registry(with_entry_points=False)
    registry.register(fft.FftConvolution())
    model = fft.long_filter_model()
    module = collage.compile(model, db=tmp_path / "db.sqlite", registry=registry, progress=False)
    chosen = {source: r.backend for r in module.program.regions for source in r.sources}
    assert chosen["long_filter"] == "fft"
    assert chosen["mix"] != "fft"
    x = np.random.default_rng(1).standard_normal((1, 8, 8192)).astype(np.float32)
    (expected,) = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    assert np.abs(module(x) - expected).max() <= 1e-4 * np.abs(expected).max()
    module.save(tmp_path / "m.collage")
    np.testing.assert_array_equal(collage.load(tmp_path / "m.collage", registry=registry)(x), module(x))


class TakeAll(collage.BasePatternRule):
    @staticmethod
    def op_rule(op: Any) -> bool | str:
        return True


class Hostile(collage.Backend):
    """Misbehaves in the kernel, in the way its name says."""

    kind = collage.BackendKind.LIBRARY

    def available(self) -> collage.Availability:
        return collage.Availability(version="1")

    def sources(self, options: collage.BuildOptions) -> Sequence[TakeAll]:
        return (TakeAll(),)

    def codegen(self, subgraph: collage.Subgraph, options: collage.BuildOptions) -> bytes:
        if self.name == "raises":
            raise ValueError("not today")
        return self.name.encode()

    def load(self, artifact: bytes, options: collage.BuildOptions) -> collage.Kernel:
        return HostileKernel(artifact.decode())


class HostileKernel(collage.Kernel):
    def __init__(self, way: str) -> None:
        self.way = way

    def bind(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Any:
        def run() -> None:
            if self.way == "segfaults":
                ctypes.string_at(0)
            elif self.way == "hangs":
                time.sleep(3600)
            for output in outputs:
                output[...] = 42

        return run


def hostile(way: str) -> Hostile:
    return type(way.capitalize(), (Hostile,), {"name": way})()


def test_hostile_backends_are_rejected_with_a_reason_and_the_compile_succeeds(tmp_path: Path) -> None:
    registry = collage.builtin_registry(with_entry_points=False)
    for way in ("segfaults", "hangs", "lies", "raises"):
        registry.register(hostile(way))
    model = elementwise_net()
    module = collage.compile(
        model, db=tmp_path / "db.sqlite", registry=registry, progress=False, time_limit_s=3.0,
        backends=["onnxruntime", "segfaults", "hangs", "lies", "raises"],
    )  # fmt: skip
    x = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)
    (expected,) = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(module(x), expected, rtol=1e-5, atol=1e-6)
    reasons = {c.backend: c.reason for c in module.report.candidates if c.reason}
    assert reasons["segfaults"].startswith("crashed")
    assert "SIGSEGV" in reasons["segfaults"]
    assert reasons["hangs"].startswith("timeout")
    assert reasons["lies"].startswith("inaccurate")
    assert "not today" in reasons["raises"]
    explained = str(module.summary()["nodes"])
    for reason in reasons.values():
        assert reason[:40] in explained


class Clumsy(Hostile):
    """Misbehaves before there is a kernel."""

    def available(self) -> Any:
        return None if self.name == "unavailable" else super().available()

    def sources(self, options: collage.BuildOptions) -> Any:
        if self.name == "gives_a_rule":
            return TakeAll()
        return [RaisingRule()] if self.name == "rule_raises" else [TakeAll]


class RaisingRule(collage.BasePatternRule):
    @staticmethod
    def op_rule(op: Any) -> bool | str:
        raise ValueError("boom")


def test_what_a_plugin_does_wrong_is_a_warning_that_names_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    registry = collage.builtin_registry(with_entry_points=False)
    for way in ("unavailable", "gives_a_rule", "gives_a_class", "rule_raises"):
        registry.register(type(way, (Clumsy,), {"name": way})())
    registry.patterns.add_rule("tvmm", TakeAll())
    model = elementwise_net()
    module = collage.compile(model, db=tmp_path / "db.sqlite", registry=registry, progress=False, quick=True)
    x = np.ones((4, 64), np.float32)
    (expected,) = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(module(x), expected, rtol=1e-5)
    told = "\n".join(caplog.messages)
    assert "backend gives_a_rule: its patterns and rules are left out; sources() has to return a list" in told
    assert "backend gives_a_class: sources() has the class TakeAll, which is no instance of a rule" in told
    assert "backend rule_raises: its pattern or rule RaisingRule is left out, since it raised ValueError: boom" in told
    assert told.count("patterns or rules are registered for tvmm, and no backend has that name") == 1
    reason = registry.availability()["unavailable"].reason
    assert reason == "its available() returned None, which is no collage.Availability"
    with pytest.raises(RegistrationError, match="backend unavailable is not available: its available"):
        collage.compile(model, backends=["unavailable"], registry=registry)
