"""TVM's kernels as images: machine code that a process loads in less than a millisecond, without TVM."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

from tvm import relax

import collage
from collage.backends.tvm_codegen import build as build_module
from collage.backends.tvm_codegen.artifact import pack, unpack
from collage.backends.tvm_codegen.build import compile_kernel
from collage.backends.tvm_codegen.lower import lower
from collage.backends.tvm_codegen.mapped import Image, ImageError, image_of, is_known
from collage.backends.tvm_codegen.run import load_kernel
from collage.kernel.frames import frame, unframe
from collage.native.library import core, core_problem
from tests.helpers.models import elementwise_net
from tests.helpers.tvm_functions import Spec, aligned, draw, f32, function, poisoned

pytestmark = pytest.mark.skipif(bool(core_problem()), reason=core_problem())
op = relax.op
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code is made anew each time, since tests change how it is made."""
    monkeypatch.setattr(build_module, "_code", build_module._code.__wrapped__)


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Spec, ...]]] = {
    "functions of C's library": (lambda e, x: op.tan(e(op.exp(x))), (f32(700, 30),)),
    "memory while it runs": (
        lambda e, x: op.nn.avg_pool2d(x, (3, 3), padding=(1, 1)),
        (f32(1, 64, 56, 56),),
    ),
    "constants": (lambda e, x: op.add(x, relax.const(np.arange(30, dtype=np.float32))), (f32(900, 30),)),
    "several results": (lambda e, x: [e(op.erf(x)), e(op.sum(x, [0]))], (f32(509, 300),)),
    "integers": (lambda e, x: op.floor_divide(x, relax.const(7, "int64")), (((4099,), "int64"),)),
    "half": (lambda e, x: op.nn.relu(x), (((1024, 70), "float16"),)),
}


def compiled(name: str, threads: int = 2) -> bytes:
    make, specs = FUNCTIONS[name]
    return compile_kernel(lower(function(make, *specs)), threads)


def ran(artifact: bytes, specs: tuple[Spec, ...]) -> list[Any]:
    kernel = load_kernel(artifact)
    outputs = [poisoned(each) for each in kernel.outputs]
    call = kernel.bind([aligned(draw(spec, at)) for at, spec in enumerate(specs)], outputs)
    for _ in range(3):
        call()
    return outputs


def no_image(*about: object) -> Image:
    raise ImageError("not here")


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("threads", [1, 2])
def test_an_image_gives_what_llvms_code_gives(name: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = compiled(name, threads)
    assert isinstance(unpack(artifact).code, Image)
    found = ran(artifact, FUNCTIONS[name][1])
    monkeypatch.setattr(build_module, "image_of", no_image)
    by_llvm = compiled(name, threads)
    assert isinstance(unpack(by_llvm).code, bytes)
    for mine, theirs in zip(found, ran(by_llvm, FUNCTIONS[name][1]), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_loading_needs_no_tvm(tmp_path: Path) -> None:
    module = collage.compile(elementwise_net(), backends=["tvm"], db=tmp_path / "db.sqlite", progress=False)
    inputs = {"x": np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)}
    module.save(tmp_path / "net.collage")
    np.savez(tmp_path / "in.npz", **inputs)
    program = """
import sys, numpy as np, collage
module = collage.load("net.collage")
np.savez("out.npz", *module(**np.load("in.npz")))
print(*{"tvm", "tvm_ffi"} & set(sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
    for mine, theirs in zip(module(**inputs), np.load(tmp_path / "out.npz").values(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def objects(monkeypatch: pytest.MonkeyPatch) -> tuple[bytes, str, list[str]]:
    """The object that LLVM makes of a kernel, the prefix of its functions, and their names."""
    seen: list[tuple[bytes, str, list[str]]] = []

    def noted(data: bytes, prefix: str, names: list[str], known: Callable[[str], bool]) -> Image:
        seen.append((data, prefix, names))
        return image_of(data, prefix, names, known)

    monkeypatch.setattr(build_module, "image_of", noted)
    compiled("functions of C's library")
    return seen[0]


def test_objects_that_cannot_become_images(monkeypatch: pytest.MonkeyPatch) -> None:
    data, prefix, names = objects(monkeypatch)
    assert image_of(data, prefix, names, is_known).functions.keys() == set(names)
    with pytest.raises(ImageError, match="it needs"):
        image_of(data, prefix, names, lambda _: False)
    with pytest.raises(ImageError, match="no function"):
        image_of(data, prefix, ["nobody"], is_known)
    with pytest.raises(ImageError, match="no relocatable object"):
        image_of(b"\x7fELF\x01" + data[5:], prefix, names, is_known)
    with pytest.raises(ImageError):
        image_of(data[:3000], prefix, names, is_known)
    with pytest.raises(ImageError):
        image_of(b"", prefix, names, is_known)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("writable", 100),
        ("writable", 0),
        ("size", 16),
        ("size", 1 << 60),
        ("functions", {"kernel_0": -1}),
        ("functions", {"kernel_0": 1 << 40}),
        ("functions", {}),
        ("imports", [["tanf", 1 << 40]]),
        ("imports", [["tanf"]]),
        ("moved", [-8]),
        ("moved", "all"),
    ],
)
def test_descriptions_that_make_no_sense(part: str, value: object) -> None:
    framed = unframe("tvm", compiled("functions of C's library"))
    header = framed.header
    header["image"][part] = value
    sizes = header.pop("sizes")
    kind = header.pop("kind")
    assert len(sizes) == len(framed.arrays)
    with pytest.raises(ValueError, match=r"\w"):
        load_kernel(frame(kind, header, framed.arrays))


def test_code_that_was_changed_is_refused() -> None:
    framed = unframe("tvm", compiled("functions of C's library"))
    header = {name: value for name, value in framed.header.items() if name not in ("sizes", "kind")}
    code = bytearray(framed.arrays[-1])
    code[len(code) // 2] ^= 1
    with pytest.raises(ValueError, match="not what was compiled"):
        load_kernel(frame("tvm", header, [*framed.arrays[:-1], bytes(code)]))


def test_code_for_another_cpu_or_with_unknown_functions_is_refused() -> None:
    framed = unframe("tvm", compiled("functions of C's library"))
    header = {name: value for name, value in framed.header.items() if name not in ("sizes", "kind")}
    assert "avx2" in header["needs"]
    wanting = frame("tvm", {**header, "needs": [*header["needs"], "avx9000"]}, framed.arrays)
    with pytest.raises(ValueError, match="CPUs with avx9000, which this CPU lacks"):
        load_kernel(wanting)
    found = unpack(framed)
    assert isinstance(found.code, Image)
    code = replace(found.code, imports=(("system_of_nobody", found.code.imports[0][1]),))
    with pytest.raises(ValueError, match="no function system_of_nobody"):
        load_kernel(pack(replace(found, code=code)))


def test_memory_for_kernels_is_aligned_and_used_again() -> None:
    take, give = core().collage_take_workspace, core().collage_give_workspace
    found: list[object] = []

    def work() -> None:  # in a thread of its own, which has given back nothing yet
        first, second = take(1, 0, 1000, 2, 32), take(1, 0, 5000, 2, 32)
        found.append(first and second and first % 64 == second % 64 == 0 and first != second)
        give(1, 0, first)
        give(1, 0, second)
        found.append(take(1, 0, 4000, 2, 32) == second and take(1, 0, 900, 2, 32) == first)
        give(1, 0, first)
        for size in range(10_000, 200_000, 5_000):
            give(1, 0, take(1, 0, size, 2, 32))
        found.append(take(1, 0, 1 << 62, 2, 32) is None)
        give(1, 0, second)

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert found == [True] * 6
