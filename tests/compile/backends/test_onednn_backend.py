"""The `onednn` backend around its kernels: finding the library, artifacts, loading, threads."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import helper

from collage.backends.onednn import OneDnn
from collage.backends.onednn_kernels import library
from collage.backends.onednn_kernels.artifact import from_artifact, to_bytes
from collage.backends.onednn_kernels.kernel import load
from collage.errors import CollageError, ModuleFileError
from collage.graph.dataflow import TensorType
from collage.graph.storage import BLOCKED, PLAIN
from collage.kernel.options import BuildOptions
from tests.helpers.backends.onednn_checks import (
    LAYOUTS,
    check_all_variants,
    needs_onednn,
    subgraph_of,
    variants_of,
)
from tests.helpers.models import conv_net, make_model


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The search for the library, done anew."""
    yield library._find.__wrapped__
    monkeypatch.undo()


def test_a_path_that_is_wrong_is_said(search: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.PATH_VARIABLE, "/nowhere/libdnnl.so.3")
    assert "COLLAGE_ONEDNN=/nowhere" in search()
    monkeypatch.setenv(library.PATH_VARIABLE, "libm.so.6")
    assert "no oneDNN that can be used" in search()


def test_a_missing_library_says_how_to_install_it(search: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(library.PATH_VARIABLE, raising=False)
    monkeypatch.setattr(library, "_NAME", "libdnnl-of-nobody.so.3")
    assert "pip install 'collage-compiler[onednn]'" in search()


def test_old_versions_and_foreign_threads_are_refused(search: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def give(*fields: int) -> None:
        """Have the loader give a library that says it is that version, with that threading runtime."""
        version = library._Version(*fields[:3], b"", fields[3], 0)
        pointer = SimpleNamespace(contents=version)
        loaded = SimpleNamespace(dnnl_version=lambda: pointer)
        monkeypatch.setattr(library.ctypes, "CDLL", lambda path: loaded)

    monkeypatch.setenv(library.PATH_VARIABLE, "here")
    give(2, 7, 3, 2)
    assert "2.7.3 is too old" in search()
    give(3, 4, 0, 4)
    assert "threads of its own" in search()


def small_product() -> Any:
    weights = {"w": np.ones((64, 96), np.float32)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    return subgraph_of(make_model(nodes, {"x": [32, 64]}, {"y": [32, 96]}, weights))


@needs_onednn
def test_artifacts_read_back() -> None:
    subgraph = small_product()
    for variant in variants_of(subgraph, 2):
        data = OneDnn().codegen(subgraph, BuildOptions(threads=2, variant=variant))
        artifact = from_artifact(data)
        assert to_bytes(artifact) == data
        assert sum(map(len, artifact.weights)) >= 64 * 96 * 4  # packed, each weight once
        assert sum(map(len, artifact.weights)) < 2 * 64 * 96 * 4
        assert artifact.threads == 2


@needs_onednn
def test_what_is_no_artifact_is_said() -> None:
    data = OneDnn().codegen(small_product(), BuildOptions())
    for broken in (b"", b"something else altogether", data[:40], data[:-8]):
        with pytest.raises(CollageError, match="no oneDNN kernel"):
            load(broken)


@needs_onednn
def test_weights_packed_for_another_machine_are_refused() -> None:
    artifact = from_artifact(OneDnn().codegen(small_product(), BuildOptions()))
    assert artifact.forms[0] is not None
    other = replace(artifact, isa=7, forms=(replace(artifact.forms[0], inner_blocks=(8, 8)),))
    with pytest.raises(ModuleFileError, match=r"ISA 0x7.*compile the model here"):
        load(to_bytes(other))


@needs_onednn
def test_the_callers_openmp_setting_stays() -> None:
    c = library.library().c
    before = c.omp_get_max_threads()
    c.omp_set_num_threads(3)
    try:
        built = check_all_variants(subgraph_of(conv_net(channels=32)), 2)
        assert {each.outputs[0] for each in built} >= LAYOUTS - {PLAIN}
        assert c.omp_get_max_threads() == 3
    finally:
        c.omp_set_num_threads(before)


@needs_onednn
def test_conversions_are_refused_where_there_is_no_layout() -> None:
    from collage.backends.onednn_kernels.reorder import reorder_kernel

    with pytest.raises(ValueError, match="no blocked layout"):
        reorder_kernel(TensorType((4, 4), "float32"), PLAIN, BLOCKED, 1)
    with pytest.raises(ValueError, match="float32"):
        reorder_kernel(TensorType((1, 4, 4, 4), "float64"), PLAIN, BLOCKED, 1)
