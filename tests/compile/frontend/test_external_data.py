"""External data that is a link, and locations that lead out of the model's folder."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import collage
from collage import onnx_backend
from collage.errors import ModelError
from collage.frontend.read.apart import filled, has_files
from collage.frontend.read.external_data import without_links
from collage.frontend.read.load import as_written, load_onnx
from collage.frontend.read.weights import WeightFiles
from collage.frontend.session import reference_run
from tests.helpers.apart import all_apart
from tests.helpers.cli.helpers import fails, json_of, succeeds
from tests.helpers.models import conv_net

__all__ = ["all_apart"]

DATA = "model.onnx_data"


def plain(folder: Path, location: str = DATA) -> Path:
    (folder / location).parent.mkdir(parents=True)
    path = folder / "model.onnx"
    options = {"save_as_external_data": True, "location": location, "size_threshold": 0}
    onnx.save_model(conv_net(), str(path), **options)
    return path


def linked_data(folder: Path) -> Path:
    path = plain(folder)
    os.rename(folder / DATA, folder.parent / "elsewhere")
    (folder / DATA).symlink_to("../elsewhere")
    return path


def hub_cache(folder: Path) -> Path:
    """As Hugging Face's cache has a model."""
    blobs, snapshot = folder / "blobs", folder / "snapshots" / "x"
    plain(blobs)
    snapshot.mkdir(parents=True)
    for name, blob in (("model.onnx", "abc"), (DATA, "def")):
        os.rename(blobs / name, blobs / blob)
        (snapshot / name).symlink_to(f"../../blobs/{blob}")
    return snapshot / "model.onnx"


def linked_model(folder: Path) -> Path:
    """Two links to a model, whose data is beside the model only."""
    plain(folder / "a")
    for name, target in (("b", "../a/model.onnx"), ("c", "../b/model.onnx")):
        (folder / name).mkdir()
        (folder / name / "model.onnx").symlink_to(target)
    return folder / "c" / "model.onnx"


def hard_links(folder: Path) -> Path:
    plain(folder / "a")
    (folder / "b").mkdir()
    for name in ("model.onnx", DATA):
        (folder / "b" / name).hardlink_to(folder / "a" / name)
    return folder / "b" / "model.onnx"


def linked_folder(folder: Path) -> Path:
    plain(folder / "a")
    (folder / "b").symlink_to("a")
    return folder / "b" / "model.onnx"


def linked_folder_of_data(folder: Path) -> Path:
    path = plain(folder / "a", "data/weights")
    os.rename(folder / "a" / "data", folder / "data")
    (folder / "a" / "data").symlink_to("../data")
    return path


LAYOUTS = (plain, linked_data, hub_cache, linked_model, hard_links, linked_folder, linked_folder_of_data)


@pytest.fixture
def x() -> dict[str, Any]:
    return {"x": np.random.default_rng().standard_normal((1, 3, 16, 16)).astype(np.float32)}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_links_are_read_like_files(
    layout: Callable[[Path], Path], tmp_path: Path, x: dict[str, Any], all_apart: None
) -> None:
    path = layout(tmp_path / "here")
    assert load_onnx(path) == load_onnx(conv_net())
    with WeightFiles() as files:
        model = load_onnx(path, files)
        assert has_files(model)
        assert filled(model).graph == load_onnx(conv_net()).graph
    with without_links(path) as readable:
        assert readable.name == path.name
        session = onnxruntime.InferenceSession(str(readable), providers=["CPUExecutionProvider"])
        (found,) = session.run(None, x)
        if layout in (plain, hard_links, linked_folder):
            assert readable == path
        elif find_spec("openvino") is not None:
            import_module("openvino").Core().read_model(str(readable))
    np.testing.assert_allclose(found, reference_run(conv_net(), x)[0], rtol=1e-4, atol=1e-5)


def test_a_cache_of_links_in_all_commands(tmp_path: Path, x: dict[str, Any]) -> None:
    path, out, db = hub_cache(tmp_path / "here"), tmp_path / "out.collage", tmp_path / "db"
    succeeds("compile", path, "-o", out, "--db", db, "--quick", "--quiet")
    (expected,) = reference_run(conv_net(), x)
    np.testing.assert_allclose(collage.load(out)(x), expected, rtol=1e-3, atol=1e-4)
    found = json_of("bench", path, "--module", out, "--rounds", "1", "--json")
    assert found["failed"] == {} and {"collage", "onnxruntime"} <= found["engines"].keys()
    np.testing.assert_allclose(
        onnx_backend.run_model(path, x, backends=["onnxruntime"], db=db)[0], expected, rtol=1e-3, atol=1e-4
    )


def relocated(folder: Path, location: str) -> Path:
    """A model with its data in the folder above, too, that has this location."""
    path = plain(folder / "inner")
    shutil.copy(folder / "inner" / DATA, folder / DATA)
    (folder / "inner" / "a").symlink_to(folder.parent)
    model = onnx.load(str(path), load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("location", [f"../{DATA}", f"a/../../{DATA}", f"./../inner/{DATA}", "/ABSOLUTE", ".."])
def test_the_model_itself_may_not_lead_out_of_its_folder(location: str, tmp_path: Path) -> None:
    location = location.replace("/ABSOLUTE", str(tmp_path / "here" / DATA))
    path = relocated(tmp_path / "here", location)
    fails(1, "compile", path, "-o", tmp_path / "out", words=(str(path), location, "not in its folder"))


def put(kind: str, path: Path) -> None:
    """A file of that kind."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("nowhere")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("pipe", "no regular file"),
        ("socket", "no regular file"),
        ("device", "no regular file"),
        ("folder", "no regular file"),
        ("dangling", "which is not there. Get that file again"),
    ],
)
def test_what_is_no_regular_file_is_refused_at_once(kind: str, words: str, tmp_path: Path) -> None:
    path = plain(tmp_path / "a")
    (tmp_path / "a" / DATA).unlink()
    put(kind, tmp_path / "a" / DATA)
    fails(1, "compile", path, "-o", tmp_path / "out", words=(str(path), DATA, words))
    if kind in ("pipe", "socket", "device"):
        path.unlink()
        put(kind, path)
        fails(1, "bench", path, words=(f"{path} is no regular file",))
        with pytest.raises(ModelError, match="no regular file"):
            as_written(path)
