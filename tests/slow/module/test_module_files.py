"""Module files that say something else than they did: numbers beyond buffers, hostile names."""

from __future__ import annotations

import json
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import collage
from collage.errors import CollageError, ModuleFileError
from collage.kernel.frames import Artifact, Framed, frame
from collage.kernel.model_artifact import apart
from collage.module import archive
from collage.module.file import Reading, read_summary
from collage.module.save import _put_artifact
from scripts.lib.fuzzing.change_module import Contents
from scripts.lib.fuzzing.corpus import write_corpus
from tests.helpers.cli.helpers import collage as command
from tests.helpers.cli.helpers import fails, json_of, succeeds

HOSTILE = "\x1b[31mred\x07\u202e<script>alert(1)</script>\r\n'\"&"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A good file for each kind of kernel that is here."""
    return {path.stem[3:]: path for path in write_corpus(tmp_path_factory.mktemp("corpus"))}


def changed(path: Path, folder: Path, change: Callable[[Contents], None]) -> Path:
    """The file with a change, and all checksums and names right."""
    contents = Contents.read(path.read_bytes())
    change(contents)
    result = folder / "changed.collage"
    result.write_bytes(contents.write())
    return result


def numbers_of(contents: Contents, backend: str) -> tuple[str, dict[str, Any]]:
    """The name and head of the backend's artifact."""
    name = next(name for name, kind in contents.kinds.items() if kind == backend)
    return name, json.loads(contents.entries[name])


NATIVE = {
    "native_gemm": [("rows", 1 << 20), ("columns", 4096), ("shares", 10**9), ("slice", 0), ("data", 7)],
    "native_direct": [
        ("batch", 1000),
        ("in", [1, 900, 9]),
        ("sources", [400] * 8),
        ("begin", [0, 99, 1]),
        ("reach", 9),
    ],
    "native_winograd": [
        ("chunk_tiles", 10**6),
        ("from", [0, 1 << 40, 0, 0, 0]),
        ("to", [1, 1, 1, 1, 1]),
        ("points", 5),
    ],
    "native_shallow": [("seen", 3), ("row_chunk", 10**6), ("to_batch", -64), ("channels", 100)],
    "native_narrow": [("row_pad", [-9, 0]), ("outputs", 4), ("from_row", 1 << 20), ("row_chunk", 10**9)],
    "mkl_product": [("left", 3), ("shares", []), ("residual", 5)],
}


@pytest.mark.parametrize(
    ("kind", "name", "value"), [(kind, *each) for kind, changes in NATIVE.items() for each in changes]
)
def test_numbers_beyond_buffers(corpus: dict[str, Path], kind: str, name: str, value: Any, tmp_path: Path) -> None:
    if kind not in corpus:
        pytest.skip(f"no {kind} here")

    def change(contents: Contents) -> None:
        at, head = numbers_of(contents, kind.partition("_")[0])
        assert name in head["numbers"]
        head["numbers"][name] = value
        contents.entries[at] = json.dumps(head).encode()

    with pytest.raises(ModuleFileError, match="damaged"):
        collage.load(changed(corpus[kind], tmp_path, change))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("threads",), 10**9),
        (("threads",), 0),
        (("types", "0"), [[1 << 60], "float32"]),
        (("types", "0"), [[-1, 64], "float32"]),
        (("types", "0"), [[48, 64], "object"]),
        (("regions", 0, "stream"), 10**12),
        (("regions", 0, "threads"), 3),
        (("regions", 0, "inputs"), [99]),
        (("regions", 0, "outputs"), [0]),
        (("regions", 0, "in_place"), [4]),
        (("inputs", 0), ["x0", 99, None]),
        (("outputs", 0), ["y0", 99]),
    ],
)
def test_programs_that_make_no_sense(
    corpus: dict[str, Path], place: tuple[Any, ...], value: Any, tmp_path: Path
) -> None:
    def change(contents: Contents) -> None:
        parent = contents.manifest["modules"][0]["program"]
        for key in place[:-1]:
            parent = parent[key]
        parent[place[-1]] = value

    path = changed(corpus["tvm_elementwise"], tmp_path, change)
    with pytest.raises(ModuleFileError, match=r"changed\.collage is damaged"):
        collage.load(path)


def test_types_that_a_kernel_was_not_compiled_for(corpus: dict[str, Path], tmp_path: Path) -> None:
    def change(contents: Contents) -> None:
        types = contents.manifest["modules"][0]["program"]["types"]
        for kind in types.values():
            kind[0] = [max(each - 1, 1) for each in kind[0]]

    for kind in ("tvm_elementwise", "onnxruntime_conv", "native_gemm", "onednn_softmax"):
        if kind in corpus:
            path = changed(corpus[kind], tmp_path, change)
            with pytest.raises(CollageError):
                collage.load(path)


def test_backends_that_nobody_knows_are_named(corpus: dict[str, Path], tmp_path: Path) -> None:
    def change(contents: Contents) -> None:
        contents.manifest["modules"][0]["program"]["regions"][0]["backend"] = "fancy"

    path = changed(corpus["tvm_elementwise"], tmp_path, change)
    with pytest.raises(ModuleFileError, match="'fancy'"):
        collage.load(path)
    succeeds("show", path)  # which loads none


def test_names_from_a_file_neither_reach_the_terminal_nor_a_page(corpus: dict[str, Path], tmp_path: Path) -> None:
    def change(contents: Contents) -> None:
        (module,) = contents.manifest["modules"]
        report, region = module["report"], module["program"]["regions"][0]
        report["model"] = report["target"] = HOSTILE
        report["notes"] = report["versions"]["tvm"] = HOSTILE
        report["notes"] = [HOSTILE]
        report["opaque"] = {HOSTILE: HOSTILE}
        region["ops"] = region["sources"] = [HOSTILE]
        for each in report["candidates"]:
            each["pattern"] = each["reason"] = HOSTILE
        for each in report["nodes"]:
            each["source"] = each["op"] = HOSTILE
        module["program"]["inputs"][0][0] = HOSTILE

    path = changed(corpus["tvm_elementwise"], tmp_path, change)
    page = tmp_path / "page.html"
    for arguments in (
        ["show", path],
        ["show", path, "--explain"],
        ["run", path],
        ["show", path, "--html", page],
    ):
        result = command(*arguments)
        said = result.stdout + result.stderr
        assert "red" in said or "--html" in arguments
        assert not {"\x1b", "\x07", "\r", "\u202e"} & {*said}, arguments
    assert HOSTILE not in page.read_text()
    assert json_of("show", path, "--json")["model"] == HOSTILE
    assert "<script" not in collage.load(path)._repr_html_()


def test_the_digest_is_of_everything(corpus: dict[str, Path], tmp_path: Path) -> None:
    data = bytearray(corpus["native_gemm" if "native_gemm" in corpus else "tvm_elementwise"].read_bytes())
    data[len(data) // 2] ^= 1  # of the weights
    path = tmp_path / "flipped.collage"
    path.write_bytes(data)
    with pytest.raises(ModuleFileError, match="damaged"):
        collage.load(path, verify=True)
    fails(1, "run", path, "--random", words=("flipped.collage is damaged",))
    fails(1, "verify", path, words=("flipped.collage is damaged",))
    told = command("verify", path, "--json")
    assert told.exit_code == 1 and "flipped.collage is damaged" in told.stderr
    found = json.loads(told.stdout)
    assert not found["valid"] and "flipped.collage is damaged" in found["reason"]


@pytest.mark.parametrize("method", [12, 14, 97])
def test_a_manifest_of_another_compression_is_damage(method: int, corpus: dict[str, Path], tmp_path: Path) -> None:
    """What unpacks it raises errors of its own: that of lzma (14) is no error of the system's."""
    data = bytearray(corpus["tvm_elementwise"].read_bytes())
    entry = data.rindex(b"manifest.json") - 46
    assert data[entry : entry + 4] == b"PK\x01\x02"
    data[entry + 10] = method
    (header,) = struct.unpack_from("<I", data, entry + 42)
    start = header + 30 + sum(struct.unpack_from("<HH", data, header + 26))
    data[start : start + 9] = b"\x09\x04\x05\x00" + b"\xff" * 5  # how lzma's properties begin, and impossible ones
    path = tmp_path / "packed.collage"
    path.write_bytes(data)
    with pytest.raises(ModuleFileError, match=r"packed\.collage is damaged"):
        collage.load(path)


BLANK = bytes(1 << 20)
VALUES = {
    "equal": b"{}," * 1000,
    "nested": b'{"a":{"b":{"c":{"d":{"e":[[[],[],[]],0]}}}}},' * 100,
    "numbers": b"".join(b"1e%d," % (n % 100) for n in range(1000)),
}


def with_manifest(path: Path, method: int, parts: list[bytes], *, claimed: int | None = None) -> Path:
    """A file whose only entry is a manifest of these parts, which claims to have so many bytes."""
    with zipfile.ZipFile(path, "w", method) as made, made.open("manifest.json", "w") as entry:
        for each in parts:
            entry.write(each)
    if claimed is not None:
        data = bytearray(path.read_bytes())
        struct.pack_into("<I", data, data.rindex(b"PK\x01\x02") + 24, claimed)
        path.write_bytes(data)
    return path


def refused_in_little_memory(path: Path) -> None:
    """``read_summary`` takes no more memory than its floor and a thousand times the file's size."""
    tracemalloc.start()
    try:
        with pytest.raises(ModuleFileError, match=f"{path.name} is damaged"):
            read_summary(path)
        assert tracemalloc.get_traced_memory()[1] < (20 << 20) + 1000 * path.stat().st_size
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("claimed", [100, None])
def test_a_manifest_that_unpacks_to_far_more_is_refused(method: int, claimed: int | None, tmp_path: Path) -> None:
    refused_in_little_memory(with_manifest(tmp_path / "bomb.collage", method, [BLANK] * 200, claimed=claimed))


@pytest.mark.parametrize("values", VALUES)
def test_a_manifest_with_far_more_values_than_the_file_has_bytes_is_refused(values: str, tmp_path: Path) -> None:
    path = with_manifest(
        tmp_path / "dense.collage", zipfile.ZIP_DEFLATED, [b'{"a":[', *[VALUES[values]] * 10_000, b"0]}"]
    )
    refused_in_little_memory(path)


def stored(path: Path, artifact: Artifact) -> dict[str, Any]:
    """Write an archive of an artifact, and return what a manifest has of it."""
    with path.open("wb") as stream, archive.NewArchive(stream) as made:
        names = _put_artifact(made, artifact)
        made.finish({})
    return names


@pytest.mark.parametrize(
    ("artifact", "programs"),
    [
        (apart(b"protobuf", [("w", "uint8", [7])], [b"weights"]), [True, False]),
        (frame("cudnn graph", {}, [b"the plan", b"weights"]), [True, False]),
        (frame("torch", {}, [b"the graph", b"code"]), [True, True]),
        (frame("tvm-cuda", {"cubins": 1}, [b"code", b"constants"]), [True, True]),
        (frame("native", {}, [b"weights"]), [False]),
    ],
)
def test_arrays_that_may_be_code_are_always_compared_with_their_digests(
    artifact: Artifact, programs: list[bool], tmp_path: Path
) -> None:
    path = tmp_path / "it"
    names = stored(path, artifact)
    whole = path.read_bytes()
    copied = Reading(archive.MappedArchive(path), verify=True).artifact(names)
    assert isinstance(copied, Framed)
    contents = [bytes(each) for each in copied.arrays]
    for number, (content, is_program) in enumerate(zip(contents, programs, strict=True)):
        flipped = bytearray(whole)
        flipped[whole.index(content)] ^= 1
        other = tmp_path / f"flipped {number}"
        other.write_bytes(flipped)
        reading = Reading(archive.MappedArchive(other), verify=False)
        if is_program:
            with pytest.raises(zipfile.BadZipFile, match="does not have the bytes that were written"):
                reading.artifact(names)
        else:
            reading.artifact(names)


def test_a_file_that_an_older_version_signed_loads(corpus: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "signed.collage"
    path.write_bytes(corpus["tvm_elementwise"].read_bytes())
    with zipfile.ZipFile(path, "a") as signed:
        signed.writestr(archive.SIGNATURE, '{"algorithm": "ed25519", "signature": "AA=="}')
    assert json_of("verify", path, "--json")["valid"]
    assert collage.load(path, verify=True).run({"x0": np.ones((4, 40), np.float32)})["y0"].shape == (4, 40)


def test_large_arrays_begin_at_boundaries_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their headers are longer: zipfile appends sizes of 64 bits to them."""
    monkeypatch.setattr(archive, "_LARGE", 1000)
    path, contents = tmp_path / "it", [bytes(10), bytes(range(256)) * 20, b"x" * 3000]
    with path.open("wb") as stream, archive.NewArchive(stream) as made:
        names = [made.put("arrays", each) for each in contents]
        made.finish({})
    found = archive.MappedArchive(path)
    for name, content in zip(names, contents, strict=True):
        view = np.frombuffer(found.get(name, check=True), np.uint8)
        assert bytes(view) == content and view.ctypes.data % 64 == 0
