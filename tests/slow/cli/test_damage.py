"""Files that are damaged, missing or from elsewhere, models that never end, and full disks: one line, nothing lost."""

from __future__ import annotations

import random
import sqlite3
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from collage import load
from tests.helpers.cli.helpers import collage, fails, json_of, succeeds
from tests.helpers.models import conv_net, elementwise_net, make_model
from tests.helpers.small_disk import no_file_above


def save_with_weights_beside(folder: Path) -> Path:
    path = folder / "net.onnx"
    options = {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 0}
    onnx.save_model(conv_net(), str(path), **options)
    return path


@pytest.mark.parametrize("share", [0.0, 0.4, 0.999])
def test_weights_file_cut_short(share: float, tmp_path: Path) -> None:
    path = save_with_weights_beside(tmp_path)
    weights = tmp_path / "weights.bin"
    weights.write_bytes(weights.read_bytes()[: int(share * weights.stat().st_size)])
    words = ("net.onnx", "cannot be read", "The external data file is cut short")
    fails(1, "compile", path, "-o", tmp_path / "out.collage", "--db", tmp_path / "db", words=words)
    assert not (tmp_path / "out.collage").exists()


def endless(*, constant: bool, typed: bool) -> onnx.ModelProto:
    """x + the result of a loop that never ends, on the largest element of x or on a constant.

    ``typed`` says what shape the result has, so that the loop can be one node among others.
    """
    scalar = [helper.make_tensor_value_info(name, TensorProto.FLOAT, []) for name in ("v", "w")]
    number = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    flags = [helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("c", "more")]
    steps = [
        helper.make_node("Greater", ["v", "least"], ["more"]),
        helper.make_node("Identity", ["v"], ["w"]),
    ]
    body = helper.make_graph(steps, "body", [number, flags[0], scalar[0]], [flags[1], scalar[1]])
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["m"], "max", keepdims=0),
        helper.make_node("Loop", ["", "yes", "two" if constant else "m"], ["l"], "endless", body=body),
        helper.make_node("Add", ["x", "l"], ["y"], "add"),
    ]
    weights = {"yes": np.array(True), "least": np.array(-1e9, np.float32), "two": np.array(2, np.float32)}
    model = make_model(nodes, {"x": [4]}, {"y": [4]}, weights)
    if typed:
        model.graph.value_info.append(helper.make_tensor_value_info("l", TensorProto.FLOAT, []))
    return model


@pytest.mark.parametrize("constant", [False, True])
def test_loop_that_never_ends(constant: bool, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save_model(endless(constant=constant, typed=True), str(path))
    options = ["--db", str(tmp_path / "db"), "--time-limit", "2"]
    words = ("endless (Loop)", "took more than 2 s", "--time-limit")
    start = time.monotonic()
    fails(1, "compile", path, "-o", tmp_path / "out.collage", *options, words=words)
    assert time.monotonic() - start < 120
    assert json_of("db", "stats", "--db", tmp_path / "db", "--json")["rejected"] == {}


def test_loop_that_never_ends_in_a_model_that_only_engines_run(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save_model(endless(constant=False, typed=False), str(path))
    options = ["--db", str(tmp_path / "db"), "--time-limit", "2", "--backends", "onnxruntime", "--quiet"]
    words = ("endless (Loop)", "no engine can run the model whole", "took more than 2 s")
    fails(1, "compile", path, "-o", tmp_path / "out.collage", *options, words=words)


def test_database_of_a_newer_version(network: Path, module: Path, database: Path, tmp_path: Path) -> None:
    newer = tmp_path / "newer.sqlite"
    newer.write_bytes(database.read_bytes())
    connection = sqlite3.connect(newer)
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    connection.execute(f"PRAGMA user_version = {version + 1}")
    connection.commit()
    connection.close()
    before = newer.read_bytes()
    words = ("newer.sqlite", "newer Collage", "Upgrade", "--db")
    fails(1, "compile", network, "-o", tmp_path / "out.collage", "--db", newer, words=words)
    assert newer.read_bytes() == before


def test_database_with_damaged_pages(network: Path, module: Path, database: Path, tmp_path: Path) -> None:
    """SQLite finds what it reads: the compile fails with one line, or does not need what is lost."""
    rng = random.Random(1)
    for attempt in range(3):
        data = bytearray(database.read_bytes())
        for _ in range(200):
            data[rng.randrange(100, len(data))] ^= 0xFF
        damaged = tmp_path / f"{attempt}.sqlite"
        damaged.write_bytes(data)
        result = collage("compile", network, "-o", tmp_path / "out.collage", "--db", damaged, "--quiet")
        if result.exit_code:
            assert result.exit_code == 1
            assert f"{attempt}.sqlite is damaged" in result.stderr
            assert "--db" in result.stderr


def test_module_file_cut_anywhere(module: Path, tmp_path: Path) -> None:
    whole, rng = module.read_bytes(), random.Random(2)
    path = tmp_path / "cut.collage"
    for length in (1, len(whole) - 1, *(rng.randrange(len(whole)) for _ in range(20))):
        path.write_bytes(whole[:length])
        for command in ("run", "show"):
            fails(1, command, path, words=("cut.collage", "damaged", "ompile"))


def test_module_file_with_flipped_bits(network: Path, database: Path, tmp_path: Path) -> None:
    module = tmp_path / "net.collage"  # small, so that the flips are all over it
    succeeds("compile", network, "-o", module, "--db", database, "--backends", "onnxruntime", "--quiet")
    whole, rng = module.read_bytes(), random.Random(3)
    path = tmp_path / "flipped.collage"
    expected = json_of("run", module, "--random", "--json")
    found = 0
    for _ in range(150):
        data = bytearray(whole)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        result = collage("run", path, "--random", "--json")
        if result.exit_code == 0:  # a date, say
            assert json_of("run", path, "--random", "--json")["outputs"] == expected["outputs"]
        else:
            found += 1
            assert result.exit_code == 1
            assert "flipped.collage" in result.stderr.splitlines()[-1]
            assert "A fault in Collage" not in result.stderr
    assert found > 100


@pytest.mark.parametrize("nbytes", [0, 3000])
def test_disk_full_while_the_module_is_written(module: Path, nbytes: int, tmp_path: Path) -> None:
    import collage
    from collage.errors import CollageError

    loaded = collage.load(module)
    out = tmp_path / "out.collage"
    out.write_bytes(b"precious")
    with no_file_above(nbytes), pytest.raises(CollageError, match=r"cannot write .*out\.collage"):
        loaded.save(out)
    assert out.read_bytes() == b"precious"
    assert [each.name for each in tmp_path.iterdir()] == ["out.collage"]


def test_disk_full_in_the_temporary_folder(tmp_path: Path) -> None:
    """The first module is handed over, and what is wrong is told."""
    path, out = tmp_path / "net.onnx", tmp_path / "out.collage"
    onnx.save_model(elementwise_net(1 << 18), str(path))
    with no_file_above(1 << 20):  # an array of the model has 4 MiB
        done = collage("compile", path, "-o", out, "--db", tmp_path / "db")
    assert done.exit_code == 0, done.output
    for words in ("cannot be written", "TMPDIR", "Handing over the best module so far"):
        assert words in done.output
    x = np.linspace(-1, 1, 4 << 18, dtype=np.float32).reshape(4, -1)
    np.testing.assert_allclose(load(out)(x), np.maximum(x, 0) + 2 * np.tanh(x), atol=1e-5)
