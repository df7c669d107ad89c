"""Artifacts on disk: the bytes come back, and what many have in common is stored once."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from collage.backends.onnxruntime import OnnxRuntime
from collage.check.store import ValueStore
from collage.errors import MeasurementError
from collage.frontend.model import import_model
from collage.frontend.subgraph import Subgraph
from collage.kernel.artifacts import Artifacts
from collage.kernel.frames import Framed, frame
from collage.kernel.options import BuildOptions
from tests.helpers.models import conv_net
from tests.helpers.small_disk import no_file_above


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def test_constants_are_named_and_not_stored(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    constants = {n: rng.standard_normal((200, 200)).astype(np.float32) for n in range(3)}
    constants[3] = constants[1].copy()
    pieces = [
        b"head",
        constants[2].tobytes(),
        b"between",
        constants[0].tobytes(),
        constants[1].tobytes(),
        b"end",
    ]
    kept = Artifacts(tmp_path / "kept", constants)
    kept.keep("one", b"".join(pieces), constants)
    assert kept.load("one") == b"".join(pieces)
    assert folder_bytes(tmp_path / "kept") < 1000
    assert "one" in kept
    assert "another" not in kept


def test_large_parts_are_stored_once(tmp_path: Path) -> None:
    arrays = [bytes(np.random.default_rng(n).bytes(100_000)) for n in range(2)]
    kept = Artifacts(tmp_path / "kept", {})
    for number in range(5):
        artifact = frame("test", {"number": number}, [*arrays, b"small"])
        kept.keep(f"{number}", artifact)
        assert kept.load(f"{number}") == artifact
    assert folder_bytes(tmp_path / "kept") < 205_000


def test_artifacts_whose_arrays_stay_in_files(tmp_path: Path) -> None:
    arrays = [bytes(np.random.default_rng(n).bytes(100_000)) for n in range(2)]
    kept = Artifacts(tmp_path / "kept", {})
    artifact = frame("test", {}, [arrays[0], b"small", arrays[1], b""])
    plain = b"plain" + arrays[0]
    kept.keep("framed", artifact)
    kept.keep("plain", plain)
    found, again = kept.open("framed"), kept.open("framed")
    assert isinstance(found, Framed) and isinstance(again, Framed)
    assert [bytes(each) for each in found.arrays] == [arrays[0], b"small", arrays[1], b""]
    assert found.header["kind"] == "test"
    places = [np.frombuffer(each.arrays[2], np.uint8).ctypes.data for each in (found, again)]
    assert places[0] == places[1], "a file is mapped once"
    assert kept.open("plain") == plain
    for path in (tmp_path / "kept").iterdir():
        path.unlink()
    assert [bytes(each) for each in pickle.loads(pickle.dumps(found)).arrays] == [*map(bytes, found.arrays)]


def test_what_is_taken_out_leaves_nothing(tmp_path: Path) -> None:
    kept = Artifacts(tmp_path / "kept", {}, sharing=False)
    artifact = np.random.default_rng(0).bytes(300_000)
    kept.keep("it", artifact)
    assert kept.take("it") == artifact and kept.take("it") is None
    assert not [*(tmp_path / "kept").iterdir()]


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    kept = Artifacts(tmp_path / "kept", {})
    with no_file_above(100_000), pytest.raises(MeasurementError, match="Make room there"):
        kept.keep("it", bytes(300_000))
    assert not [*(tmp_path / "kept").iterdir()]
    store = ValueStore(tmp_path / "values")
    with no_file_above(100_000), pytest.raises(MeasurementError, match="Make room there"):
        store.save(1, np.zeros(300_000, np.float32))
    assert not [*(tmp_path / "values").iterdir()]


def test_other_constants_are_noticed(tmp_path: Path) -> None:
    one, other = np.ones(40_000, np.float32), np.zeros(40_000, np.float32)
    Artifacts(tmp_path, {0: one}).keep("it", one.tobytes(), [0])
    with pytest.raises(MeasurementError, match="does not have the bytes"):
        Artifacts(tmp_path, {0: other}).load("it")


def test_the_weights_of_an_engines_model_are_the_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collage.kernel.artifacts._LARGE", 256)
    model = import_model(conv_net())
    whole = Subgraph(model, tuple(range(len(model.graph.nodes))))
    artifact = OnnxRuntime().codegen(whole, BuildOptions())
    kept = Artifacts(tmp_path / "kept", model.graph.constants)
    kept.keep("it", artifact, whole.constants)
    assert kept.load("it") == artifact
    large = sum(a.nbytes for a in model.graph.constants.values() if a.nbytes >= 256)
    assert large > 1000
    assert folder_bytes(tmp_path / "kept") <= len(artifact) - large + 1000
