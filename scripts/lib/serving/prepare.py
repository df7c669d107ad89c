"""The files of a model that is served: ONNX, Collage's, and the folder for other systems. Each is made once."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from collage.errors import CollageError, unknown_names
from scripts.lib import ROOT
from scripts.lib.decoders.shape import NAMED, DecoderShape, small
from scripts.lib.decoders.write import write_decoder
from scripts.lib.serving.contender import FLOAT32
from scripts.lib.serving.formats.hugging_face import write_folder
from scripts.lib.studies.each import say


@dataclass(frozen=True)
class Model:
    """A decoder, and where it is: ``module`` is Collage's file, ``folder`` is what other systems read.

    There is no folder of a mixture of experts.
    """

    name: str
    shape: DecoderShape
    onnx: Path
    module: Path
    folder: Path


@dataclass(frozen=True)
class Making:
    """How files are made: the folder for them, and the options of ``collage compile-decoder``."""

    folder: Path
    threads: int
    tiny: bool = False
    compile_options: tuple[str, ...] = ()
    precision: str = FLOAT32

    @property
    def module_end(self) -> str:
        """The end of the names of Collage's files."""
        return f".{self.threads}-threads{'' if self.precision == FLOAT32 else f'.{self.precision}'}.collage"


def prepared(name: str, making: Making) -> Model:
    """The files of one of the decoders that ``scripts/models`` makes. Raises UsageError and CollageError."""
    if name not in NAMED:
        raise unknown_names("decoder", [name], NAMED)
    home = making.folder / "small" if making.tiny else making.folder
    home.mkdir(parents=True, exist_ok=True)
    model = Model(
        name,
        small(NAMED[name]) if making.tiny else NAMED[name],
        home / f"{name}.onnx",
        home / f"{name}{making.module_end}",
        home / f"{name}-peers",
    )
    if not model.onnx.exists():
        say(f"{name}: writing {model.onnx}")
        write_decoder(name, home, making.tiny)
    if not model.shape.experts and not (model.folder / "config.json").exists():
        write_folder(model.onnx, model.shape, model.folder)
    if not model.module.exists():
        say(f"{name}: compiling {model.module}")
        _compile(model.onnx, model.module, making)
    return model


def _compile(onnx: Path, module: Path, making: Making) -> None:
    """Compile in a process of its own, which takes its memory with it. Raises CollageError."""
    command = [
        sys.executable, "-m", "collage", "compile-decoder", str(onnx), "-o", str(module),
        "--threads", str(making.threads), "-q", *making.compile_options,
    ]  # fmt: skip
    ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    if ended.returncode:
        raise CollageError(f"{onnx} was not compiled; `collage compile-decoder` has said why.")
