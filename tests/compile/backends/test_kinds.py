"""What a backend is: one that makes kernels, an engine, a tuner; and what is refused because nobody would call it."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

import collage
from collage.backends import registry as registries
from collage.backends.base import Backend, BackendKind
from collage.backends.engine import Engine
from collage.backends.onnxruntime import OnnxRuntime
from collage.backends.tuner import Tuner
from collage.backends.tvm import Tvm
from collage.errors import RegistrationError
from collage.frontend.subgraph import Subgraph
from collage.kernel.options import BuildOptions
from collage.measure.worker.serialisation import pickle_backend
from tests.helpers.backends_for_tests import NumpyBackend, chain_model


class OldEngine(NumpyBackend):
    """As a plug-in was written when every backend had all methods."""

    name: ClassVar[str] = "old"

    def session(self, model: bytes, options: BuildOptions) -> Any:
        return None

    def profiles(self, options: BuildOptions) -> Sequence[str]:
        return ("", "other")


class OldTuner(NumpyBackend):
    name: ClassVar[str] = "old"

    def tune(self, subgraph: Subgraph, options: BuildOptions) -> str:
        return "found"


class Whole(Engine):
    """All that an engine needs that takes no parts of models."""

    name = "whole"

    def available(self) -> collage.Availability:
        return collage.Availability(version="1")

    def load(self, artifact: Any, options: BuildOptions) -> collage.Kernel:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        (OldEngine(), r"old has the method profiles and session, .* derive OldEngine from collage\.Engine"),
        (OldTuner(), r"old has the method tune, .* derive OldTuner from collage\.Tuner"),
    ],
)
def test_methods_that_nobody_would_call_are_refused(backend: Backend, message: str) -> None:
    registry = collage.Registry()
    with pytest.raises(RegistrationError, match=message):
        registry.register(backend)
    assert registry.names == ()


def test_an_old_plug_in_of_an_entry_point_costs_itself_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name, value = "old", "package:OldEngine"

        def load(self) -> type[Backend]:
            return OldEngine

    monkeypatch.setattr(registries, "entry_points", lambda group: [Point()])
    registry = collage.builtin_registry()
    assert "old" not in registry.names and "tvm" in registry.names
    assert "collage.Engine" in registry.problems["old"]


def test_an_engine_may_take_whole_models_only() -> None:
    registry = collage.Registry()
    registry.register(Whole())
    engine, options = Whole(), BuildOptions()
    assert engine.kind is BackendKind.ENGINE and engine.profiles(options) == ("",)
    assert engine.sources(options) == ()
    with pytest.raises(collage.UnsupportedError, match="whole models only"):
        engine.codegen(Subgraph(chain_model(), (0,)), options)
    with pytest.raises(collage.UnsupportedError, match="takes whole models as kernels only, with all shapes known"):
        engine.session(b"", options)
    with pytest.raises(collage.UnsupportedError, match="tensorrt takes whole models as kernels only"):
        collage.builtin_registry()["tensorrt"].session(b"", options)


def test_a_backend_is_in_the_worker_what_it_is_here() -> None:
    for backend in (OnnxRuntime(), Tvm(), Whole()):
        twin = pickle.loads(pickle_backend(backend.name, backend))
        assert isinstance(twin, Engine) == isinstance(backend, Engine)
        assert isinstance(twin, Tuner) == isinstance(backend, Tuner)
