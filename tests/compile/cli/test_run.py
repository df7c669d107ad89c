"""``collage run``: numbers as ONNX Runtime has them, and one line for every bad input."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import collage
from collage.cli.arrays import describe_array, fill_inputs, read_arrays, save_arrays
from collage.errors import CollageError
from collage.frontend.random_inputs import random_array
from collage.graph.dataflow import TensorType
from collage.runtime.inputs import collect_inputs
from collage.schedule.program import Port
from tests.helpers.cli.helpers import fails, json_of, succeeds
from tests.helpers.models import make_model
from tests.helpers.small_disk import no_file_above


@pytest.fixture
def array(tmp_path: Path) -> Path:
    path = tmp_path / "x.npy"
    np.save(path, np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32))
    return path


def test_outputs_are_saved_and_described(module: Path, array: Path, tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    found = json_of("run", module, "--input", f"x={array}", "--output-dir", folder, "--json")
    x, y = np.load(array), np.load(folder / "y.npy")
    np.testing.assert_allclose(y, np.maximum(x, 0) + np.tanh(x) * 2, rtol=1e-4, atol=1e-5)
    (output,) = found["outputs"]
    assert (output["name"], output["dtype"], output["shape"]) == ("y", "float32", [4, 64])
    assert output["file"] == str(folder / "y.npy")
    assert output["min"] == pytest.approx(y.min())
    assert output["max"] == pytest.approx(y.max())
    assert output["mean"] == pytest.approx(y.mean(), rel=1e-4)


def test_random_inputs_are_seeded(module: Path) -> None:
    first, again, other = (json_of("run", module, "--random", "--json", "--seed", s) for s in ("1", "1", "2"))
    assert first == again
    assert first != other


def test_a_time_line_is_written(network: Path, database: Path, tmp_path: Path) -> None:
    placed, file = tmp_path / "placed.collage", tmp_path / "trace.json"
    succeeds("compile", network, "-o", placed, "--db", database, "--quiet", "--strict")
    assert f"wrote {file}" in succeeds("run", placed, "--random", "--trace", file)
    found = json.loads(file.read_text())
    launches = [each for each in found["traceEvents"] if each["ph"] == "X"]
    assert launches
    assert all(each["dur"] > 0 and each["ts"] >= 0 and each["cat"] for each in launches)
    assert json_of("run", placed, "--random", "--trace", file, "--json")["trace"] == str(file)
    fails(1, "run", placed, "--random", "--trace", tmp_path / "no" / "trace.json", words=("there is no folder",))
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


def test_a_time_line_must_not_replace_what_is_read(module: Path, array: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.collage"
    copy.write_bytes(module.read_bytes())
    before = array.read_bytes()
    for path in (copy, array):
        fails(
            2,
            "run",
            copy,
            "--input",
            f"x={array}",
            "--trace",
            path,
            words=("--trace would replace", str(path)),
        )
    assert (copy.read_bytes(), array.read_bytes()) == (module.read_bytes(), before)


def test_wrong_name(module: Path, array: Path) -> None:
    fails(2, "run", module, "--input", f"z={array}", words=("unknown input: z", "Valid: x"))


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (np.zeros((4, 63), np.float32), "has shape 4x63, the module was compiled for 4x64. Give that shape."),
        (np.zeros((4, 64), np.float64), "has dtype float64"),
        (np.zeros((4, 64), np.int64), "has dtype int64"),
    ],
)
def test_wrong_shape_or_dtype(module: Path, tmp_path: Path, value: np.ndarray, word: str) -> None:
    np.save(tmp_path / "x.npy", value)
    fails(2, "run", module, "--input", f"x={tmp_path / 'x.npy'}", words=("input x", word))


def test_bad_flags(module: Path, array: Path) -> None:
    fails(2, "run", module, "--input", str(array), words=("INPUT=file.npy",))
    fails(2, "run", module, "--input", f"x={array}", "--input", f"x={array}", words=("more than once", "x"))


def test_bfloat16_goes_through_files(tmp_path: Path) -> None:
    kind = TensorType((3,), "bfloat16")
    array = random_array(kind, np.random.default_rng(0))
    path = save_arrays(tmp_path, {"x": array})["x"]
    ports = [Port("x", 0, kind)]
    (found,) = collect_inputs(ports, (), fill_inputs(ports, read_arrays({"x": path}), None))
    assert found.dtype == array.dtype
    assert found.tobytes() == array.tobytes()
    assert describe_array("x", array)["max"] == float(array.astype(np.float32).max())


@pytest.mark.parametrize("command", ["run", "show"])
def test_bad_module_file(command: str, module: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.collage"
    fails(1, command, path, words=("no such file", "bad.collage", "collage compile"))
    fails(1, command, tmp_path, words=("directory",))
    whole = module.read_bytes()
    for content in (b"", whole[: len(whole) // 2]):
        path.write_bytes(content)
        fails(1, command, path, words=("bad.collage", "damaged", "ompile"))
    path.write_bytes(b"no module")
    line = fails(1, command, path, words=("bad.collage is no module file", "collage compile"))
    assert "damaged" not in line


@pytest.mark.parametrize("command", ["run", "show", "verify"])
def test_a_model_is_no_module(command: str, network: Path) -> None:
    way_out = f"`collage compile {network} -o {network.with_suffix('.collage')}` compiles it"
    fails(1, command, network, words=("net.onnx is a model, not a module file", way_out))


HUGE = "{'descr': '<f4', 'fortran_order': False, 'shape': (1152921504606846975,), }"


def header(text: str) -> bytes:
    """A file of numpy's with that header, and no data."""
    data = text.encode().ljust(400) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(data).to_bytes(2, "little") + data


@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param("x.npz", b"PK\x03\x04 cut short", id="a zip file that is cut short"),
        pytest.param("x.npy", b"no array", id="no array"),
        pytest.param("x.npy", header("{'descr': '<f4', 'shape': (4"), id="a header that does not end"),
        pytest.param("x.npy", header("{'descr': '<f4'\n  'shape'\n"), id="a header with odd lines"),
        pytest.param("x.npy", header("(" * 300), id="a header that is nested too deeply"),
        pytest.param("x.npy", header(HUGE), id="an array that takes more memory than there is"),
    ],
)
def test_arrays_that_are_damaged(module: Path, tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    fails(2, "run", module, "--input", f"x={path}", words=("input x", str(path), "cannot be read"))


def test_a_terminal_that_lacks_characters() -> None:
    """Node names are shortened by a character that few encodings have."""
    program = (
        "import click; from collage.cli.errors import CollageGroup\n"
        "group = CollageGroup('it'); group.command('show')(lambda: click.echo('a\\u2026b')); group.main(['show'])"
    )
    environment = {**os.environ, "PYTHONIOENCODING": "iso-8859-1"}
    shown = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=False)
    assert (shown.returncode, shown.stdout) == (0, b"a?b\n"), shown.stderr.decode()


def test_long_and_odd_names_of_outputs(tmp_path: Path) -> None:
    names = ["o" * 250 + "1", "o" * 250 + "2", "\u00e4" * 250, "a/b", "a b", "/", "*"]
    arrays = {name: np.full(1, number) for number, name in enumerate(names)}
    files = save_arrays(tmp_path, arrays)
    assert sorted(tmp_path.iterdir()) == sorted(files.values())
    assert [np.load(files[name]).item() for name in names] == [*range(len(names))]
    assert not any(path.name.startswith(".") for path in files.values())


def test_either_all_outputs_are_written_or_none(tmp_path: Path) -> None:
    arrays = {name: np.arange(8) for name in "abc"}
    (tmp_path / "c.npy").mkdir()
    with pytest.raises(CollageError, match=r"cannot write .*c\.npy"):
        save_arrays(tmp_path, arrays)
    assert [each.name for each in tmp_path.iterdir()] == ["c.npy"]
    (tmp_path / "c.npy").rmdir()
    with no_file_above(4096), pytest.raises(CollageError, match=r"cannot write .*c\.npy"):
        save_arrays(tmp_path, {**arrays, "c": np.arange(1000)})
    assert [*tmp_path.iterdir()] == []


def test_an_output_goes_to_where_a_link_leads_with_the_permissions_there(tmp_path: Path) -> None:
    save_arrays(tmp_path, {"x": np.arange(3)})
    (tmp_path / "x.npy").chmod(0o640)
    (tmp_path / "y.npy").symlink_to("x.npy")
    save_arrays(tmp_path, {"y": np.arange(4)})
    assert (tmp_path / "y.npy").is_symlink() and np.load(tmp_path / "x.npy").tolist() == [0, 1, 2, 3]
    assert (tmp_path / "x.npy").stat().st_mode & 0o777 == 0o640


ODD_NAMES = ("self", "inputs", "two words", "a*b", "it's", "x" * 250)


def test_odd_names_of_inputs_and_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that are no words of Python or of a shell: flags in messages can be pasted."""
    path, out = tmp_path / "odd names.onnx", tmp_path / "out.collage"
    nodes = [
        helper.make_node("Sum", list(ODD_NAMES), ["o" * 250]),
        helper.make_node("Neg", ["o" * 250], ["a/b"]),
    ]
    model = make_model(nodes, {name: ["n", "k"] for name in ODD_NAMES}, {"o" * 250: ["n", "k"], "a/b": ["n", "k"]})
    onnx.save_model(model, str(path))
    options = ("-o", out, "--db", tmp_path / "db", "--backends", "onnxruntime", "--quiet")
    line = fails(2, "compile", path, *options, "--strict", words=("--shape 'two words:1x128'",))
    flags = shlex.split(line.partition("for example: ")[2].partition(" (sizes")[0])
    succeeds("compile", path, *options, *flags)
    arrays = {name: np.random.default_rng().standard_normal((1, 128)).astype(np.float32) for name in ODD_NAMES}
    expected = np.sum([*arrays.values()], axis=0)
    line = fails(2, "run", out, words=("--input 'two words=two_words.npy'",))
    flags = shlex.split(line.partition(" Give ")[2].partition(", or --random")[0])
    for name, flag in zip(ODD_NAMES, flags[1::2], strict=True):
        np.save(tmp_path / flag.removeprefix(f"{name}="), arrays[name])
    monkeypatch.chdir(tmp_path)
    found = json_of("run", out, *flags, "--output-dir", "out", "--json")["outputs"]
    saved = {each["name"]: np.load(each["file"]) for each in found}
    told = succeeds("run", out, *flags, "--output-dir", "out").splitlines()
    assert told[-2:] == [f"{each['name']} is saved as {each['file']}" for each in found]
    np.testing.assert_allclose(saved["o" * 250], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(saved["a/b"], -expected, rtol=1e-5, atol=1e-6)
    module = collage.load(out)
    for given in (module.run(arrays), module.run(**arrays), module.run(inputs=arrays)):
        np.testing.assert_allclose(given["a/b"], -expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(module(**arrays)[1], -expected, rtol=1e-5, atol=1e-6)
    fails(1, "run", path, words=(f"`collage compile '{path}' -o '{path.with_suffix('.collage')}'`",))
