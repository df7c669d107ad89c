"""Keys stay byte for byte what they were, so that the databases of earlier versions remain valid."""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import ClassVar

import numpy as np
import onnxruntime
import pytest
import tvm

from collage.backends.layout import LayoutTransforms
from collage.backends.tuner import Tuner
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import TensorType
from collage.graph.storage import CHANNELS_LAST, CUDA, PLAIN
from collage.kernel.options import BuildOptions, Variant
from collage.kernel.transform import LayoutTransform
from collage.measure.measured_model import MeasuredModel
from collage.measure.request_keys import RequestKeys
from collage.measure.settings import MeasureSettings
from collage.measure.timing.effort import FULL, QUICK, Effort
from collage.measure.worker.protocol import CandidateRequest
from tests.helpers.backends_for_tests import NumpyBackend, chain_model

ALL = (0, 1, 2, 3)
ROWS = Variant((PLAIN,), (CHANNELS_LAST,), "rows")
MODEL = "dac2f80a309b7a611fc509ff33cd5f40c737ffff900a570217e4304144adabb0"
SAMPLES = "9caadbcdf578284313baa3b1310570682a0faafe3b6a0198c7155e7221412468"
WHOLE = "3644f58a7ac271afb2b983d3bece3fc0"


class Tuned(Tuner, NumpyBackend):
    """Tunes tanh by itself, and its settings show what it is built for."""

    name: ClassVar[str] = "tuner"

    def settings(self, options: BuildOptions) -> str:
        return f"{options.tune_trials} trials, exclusive {options.exclusive}"

    def tunes(self, subgraph: Subgraph) -> bool:
        return "tanh" in subgraph.ops

    def tune(self, subgraph: Subgraph, options: BuildOptions) -> str:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def cache_of_4_mib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collage.measure.timing.cache_state.last_level_cache", lambda: 4 << 20)


class OnGpu(NumpyBackend):
    """Is for a GPU, whose kernels are timed with a cache of its own."""

    name: ClassVar[str] = "on_gpu"
    device: ClassVar[str] = CUDA


def test_a_kernel_on_a_gpu_does_not_depend_on_the_cache_of_the_cpu() -> None:
    there = OnGpu()
    settings = replace(settings_of(FULL), backends={"on_gpu": there}, versions={"on_gpu": "1.0"})
    model = chain_model((8, 1 << 17))
    found = RequestKeys(MeasuredModel(model), settings).key(CandidateRequest((0,), "on_gpu"))
    assert "among" not in found.settings
    assert keys().key(CandidateRequest((0,), "numpy")).settings == " among 1 MiB"


def settings_of(effort: Effort) -> MeasureSettings:
    backends = {each.name: each for each in (NumpyBackend(), Tuned(), LayoutTransforms())}
    versions = {"numpy": "1.0", "tuner": "2.0", "layout": "3.0"}
    return MeasureSettings(backends, versions, BuildOptions(2, tune_trials=3), "some machine", effort)


def keys(effort: Effort = FULL, threads: int = 2) -> RequestKeys:
    model = chain_model((8, 1 << 17))  # 512 KiB of weights
    return RequestKeys(MeasuredModel(model), settings_of(effort).on_threads(threads))


@pytest.mark.parametrize(("effort", "mark"), [(FULL, ""), (QUICK, " quick")])
@pytest.mark.parametrize(
    ("request_", "digest", "settings"),
    [
        (CandidateRequest((0,), "numpy"), "5231bc3b9cab38f6c3c1b9c010daa04d", " among 1 MiB"),
        (
            CandidateRequest((0, 1), "numpy", ROWS),
            "6db2013a4032ed0268cee53b373b045d",
            "[plain -> channels-last; rows]  among 1 MiB",
        ),
        (
            CandidateRequest((0, 1), "numpy", replace(ROWS, precision="bf16")),
            "6db2013a4032ed0268cee53b373b045d",
            "[plain -> channels-last; rows] in bf16  among 1 MiB",
        ),
        (CandidateRequest((2,), "tuner"), "dc9e79c991767e7a2abbc87961b7f384", "3 trials, exclusive False"),
        (CandidateRequest(ALL, "tuner"), WHOLE, "3 trials, exclusive True among 1 MiB"),
    ],
)
def test_keys_of_requests(request_: CandidateRequest, digest: str, settings: str, effort: Effort, mark: str) -> None:
    version = "1.0" if request_.backend == "numpy" else "2.0"
    expected = (digest, request_.backend, version, settings + mark, 2, "some machine", tvm.__version__)
    assert astuple(keys(effort).key(request_)) == expected


def test_nothing_is_tuned_for_another_number_of_threads() -> None:
    key = keys(threads=1).key(CandidateRequest((2,), "tuner"))
    assert (key.settings, key.threads) == ("0 trials, exclusive False", 1)


@pytest.mark.parametrize(("effort", "mark"), [(FULL, ""), (QUICK, " quick")])
def test_keys_of_transforms(effort: Effort, mark: str) -> None:
    transform = LayoutTransform(TensorType((1, 32, 8, 8), "float32"), PLAIN, CHANNELS_LAST)
    for threads in (1, 2):
        assert astuple(keys(effort, threads).transform_key(transform)) == (
            *("plain -> channels-last of float32[1x32x8x8]", "layout", "3.0", mark),
            *(threads, "some machine", ""),
        )


def test_keys_of_conversions() -> None:
    versions = f"tvm {tvm.__version__} onnxruntime {onnxruntime.__version__} comparison 2"
    assert keys().conversions_key() == f"{MODEL} {versions}"
    model = replace(chain_model((8, 1 << 17)), example_inputs={"x": np.arange(3, dtype=np.float32)})
    found = RequestKeys(MeasuredModel(model), settings_of(FULL)).conversions_key()
    assert found == f"{MODEL} on {SAMPLES} {versions}"


def test_keys_do_not_depend_on_the_precisions_that_are_allowed() -> None:
    some = settings_of(FULL)
    allowed = replace(some, build=replace(some.build, precisions=frozenset({"bf16"})))
    measured = MeasuredModel(chain_model((8, 1 << 17)))
    for request in (
        CandidateRequest((0,), "numpy"),
        CandidateRequest((0, 1), "numpy", ROWS),
        CandidateRequest(ALL, "tuner"),
    ):
        assert RequestKeys(measured, allowed).key(request) == RequestKeys(measured, some).key(request)
