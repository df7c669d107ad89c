"""The files of a model that is served: ONNX, Collage's, and the folder for other systems. Each is made once."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from collage.errors import CollageError, unknown_names
from scripts.lib import ROOT, say
from scripts.lib.decoders.shape import NAMED, DecoderShape, small
from scripts.lib.decoders.write import write_decoder
from scripts.lib.serving.hugging_face import write_folder
from scripts.lib.serving.process import BFLOAT16, FLOAT32, INT8

OPTIONS = {FLOAT32: (), BFLOAT16: ("--tolerance", "2e-2", "--no-8-bits"), INT8: ("--tolerance", "5e-2")}
"""The options of ``collage compile-decoder`` for each precision."""


@dataclass(frozen=True)
class Model:
    """A decoder and its files: ``module`` is Collage's file, and other systems read ``folder``.

    There is no folder of a mixture of experts.
    """

    name: str
    shape: DecoderShape
    onnx: Path
    module: Path
    folder: Path


def prepared(name: str, folder: Path, *, threads: int, tiny: bool, precision: str) -> Model:
    """The files of one of the decoders that ``scripts/models`` makes. Raises UsageError and CollageError."""
    if name not in NAMED:
        raise unknown_names("decoder", [name], NAMED)
    home = (folder / "small" if tiny else folder).absolute()
    home.mkdir(parents=True, exist_ok=True)
    end = "" if precision == FLOAT32 else f".{precision}"
    model = Model(
        name,
        small(NAMED[name]) if tiny else NAMED[name],
        home / f"{name}.onnx",
        home / f"{name}.{threads}-threads{end}.collage",
        home / f"{name}-peers",
    )
    if not model.onnx.exists():
        say(f"{name}: writing {model.onnx}")
        write_decoder(name, home, tiny)
    if not model.shape.experts and not (model.folder / "config.json").exists():
        write_folder(model.onnx, model.shape, model.folder)
    if not model.module.exists():
        say(f"{name}: compiling {model.module}")
        options = ("--buckets", "1,8,64", "--quick") if tiny else OPTIONS[precision]
        _compile(model, "--threads", str(threads), *options)
    return model


def _compile(model: Model, *options: str) -> None:
    """Compile in a process of its own, which takes its memory with it. Raises CollageError."""
    command = [sys.executable, "-m", "collage", "compile-decoder", str(model.onnx), "-o", str(model.module)]
    ended = subprocess.run([*command, "-q", *options], cwd=ROOT, stdout=subprocess.DEVNULL)
    if ended.returncode:
        raise CollageError(f"{model.onnx} was not compiled; `collage compile-decoder` has said why.")
