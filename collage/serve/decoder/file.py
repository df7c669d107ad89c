"""The file of a compiled decoder: a module file with all segments and what connects them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collage._version import __version__
from collage.backends.base import VIEW
from collage.backends.registry import Registry
from collage.core.new_file import new_file
from collage.core.typed import typed
from collage.errors import ModuleFileError
from collage.kernel.buffers import as_bytes
from collage.module.archive import MappedArchive, NewArchive
from collage.module.file import FORMAT, Reading, damage, open_archive, target_of
from collage.module.fit import fit_of
from collage.module.load import refuse
from collage.module.save import put_parts
from collage.runtime.parts import Parts
from collage.schedule.read_program import read_program
from collage.schedule.region import Region
from collage.serve.attention import Heads, LayerAttention, Rotations
from collage.serve.decoder.compiled import After, CompiledDecoder, Decoder, Wiring

DECODER_FORMAT = 4
"""The format of what a decoder's file has besides that of modules."""


def save_decoder(compiled: CompiledDecoder, path: Path, others: Sequence[CompiledDecoder] = ()) -> None:
    """Write one file that ``load_decoder`` reads. Weights of kernels that share them are stored once.

    ``others`` are the parts of the processes after the first one, if there are several. Raises OSError when the file
    cannot be written.
    """
    with new_file(path) as stream, NewArchive(stream) as archive:
        modules: list[dict[str, Any]] = []

        def put(parts: Parts) -> int:
            modules.append(put_parts(archive, parts))
            return len(modules) - 1

        def attention(each: LayerAttention) -> dict[str, Any]:
            angles = {"cos": each.rotations.cos, "sin": each.rotations.sin}
            tables = {
                name: archive.put("arrays", as_bytes(np.ascontiguousarray(table)).data)
                for name, table in angles.items()
            }
            return {"heads": asdict(each.heads), "tables": tables}

        def kernels(each: CompiledDecoder) -> dict[str, Any]:
            return {
                "attention": [attention(layer) for layer in each.attention],
                "segments": {str(n): [put(part) for part in parts] for n, parts in each.segments.items()},
                "ends": {str(n): put(parts) for n, parts in each.ends.items()},
            }

        archive.finish(
            {
                "format": FORMAT,
                "collage": __version__,
                "modules": modules,
                "decoder": {
                    "format": DECODER_FORMAT,
                    "name": compiled.name,
                    "decoder": asdict(compiled.decoder),
                    "max_length": compiled.max_length,
                    "threads": compiled.threads,
                    "wiring": [asdict(each) for each in compiled.wiring],
                    "parts": [kernels(each) for each in (compiled, *others)],
                    "after": [asdict(each) for each in compiled.after],
                    "costs_ms": {str(n): cost for n, cost in compiled.costs_ms.items()},
                    "body_ms": {str(n): cost for n, cost in compiled.body_ms.items()},
                    "error": compiled.error,
                    "tolerance": compiled.tolerance,
                    "end_tokens": list(compiled.end_tokens),
                },
            }
        )


def load_decoder(path: Path, registry: Registry, *, share: bool = True, rank: int = 0) -> CompiledDecoder:
    """Read a decoder's file, and check it against this machine and the installed libraries.

    Weights are read in the mapped file, or with ``share`` off in memory of this process. Of a decoder for several
    processes, this is the part of process ``rank``. Raises ModuleFileError.
    """
    archive = _opened(path, share)
    reading = Reading(archive, verify=False)
    with damage(path):
        modules = archive.manifest["modules"]
        for each in modules:
            refuse(path, fit_of(each, registry), strict=True)
        about = archive.manifest["decoder"]
        if about["format"] != DECODER_FORMAT:
            raise ValueError(f"its decoder has the format {about['format']}, not {DECODER_FORMAT}")
        length = typed(int, about["max_length"])
        decoder = typed(Decoder, about["decoder"])
        parts = about["parts"][rank]
        tables: dict[str, NDArray[np.float32]] = {}
        attention = tuple(_attention(reading, each, length, tables) for each in parts["attention"])
        for layer, each in zip(decoder.layers, attention, strict=True):
            if not layer.sizes == each.heads.sizes == attention[0].heads.sizes:
                raise ValueError(f"{layer.node} has other heads than the decoder")
        return CompiledDecoder(
            typed(str, about["name"]),
            decoder,
            attention,
            length,
            typed(int, about["threads"]),
            tuple(typed(list[Wiring], about["wiring"])),
            {
                int(n): tuple(reading.parts(modules[place]) for place in places)
                for n, places in parts["segments"].items()
            },
            {int(n): reading.parts(modules[place]) for n, place in parts["ends"].items()},
            {int(n): typed(float, cost) for n, cost in about["costs_ms"].items()},
            len(about["parts"]),
            tuple(typed(list[After], about["after"])),
            typed(float, about["error"]),
            typed(float, about["tolerance"]),
            {int(n): typed(float, cost) for n, cost in about.get("body_ms", {}).items()},
            tuple(typed(list[int], about.get("end_tokens", []))),
        )


def threads_in(path: Path) -> int:
    """The threads that a decoder in a file was compiled for. Raises ModuleFileError."""
    archive = _opened(path, True)
    with damage(path):
        return typed(int, archive.manifest["decoder"]["threads"])


def cache_in(path: Path) -> tuple[Heads, int, int]:
    """The heads of a decoder in a file, its layers, and the most tokens of a sequence. Raises ModuleFileError."""
    archive = _opened(path, True)
    with damage(path):
        about = archive.manifest["decoder"]
        layers = about["parts"][0]["attention"]
        return typed(Heads, layers[0]["heads"]), len(layers), typed(int, about["max_length"])


def _opened(path: Path, share: bool) -> MappedArchive:
    archive = open_archive(path, share=share)
    if "decoder" not in archive.manifest:
        raise ModuleFileError(
            f"{path} is a module, and no decoder: compile one for serving from a decoder's ONNX file."
        )
    return archive


def _attention(reading: Reading, about: Any, length: int, tables: dict[str, NDArray[np.float32]]) -> LayerAttention:
    """How a layer attends; tables of angles that were read before are taken from ``tables``."""
    heads = typed(Heads, about["heads"])
    found = []
    for each in ("cos", "sin"):
        name = typed(str, about["tables"][each])
        if name not in tables:
            raw = np.frombuffer(reading.archive.get(name, check=True), np.uint8)
            tables[name] = raw.view(np.float32)
        found.append(tables[name].reshape(length, heads.rotary // 2))
    return LayerAttention(heads, Rotations(*found))


Segments = tuple[tuple[Region, ...], ...]
"""The kernels of each segment, in launch order."""


@dataclass(frozen=True)
class DecoderSummary:
    """A decoder's file as ``collage show`` shows it. The fields that ``CompiledDecoder`` has, too, are those.

    ``segments`` has for each bucket of tokens the kernels of all segments but the last, and ``ends`` for each bucket of
    rows those of the last one. Of a decoder for several processes these are the first one's.
    """

    name: str
    target: str
    layers: int
    vocabulary: int
    max_length: int
    threads: int
    processes: int
    tolerance: float
    error: float
    costs_ms: Mapping[int, float]
    segments: Mapping[int, Segments]
    ends: Mapping[int, tuple[Region, ...]]

    @property
    def precisions(self) -> frozenset[str]:
        kernels = [*self.ends.values(), *(each for found in self.segments.values() for each in found)]
        return frozenset(region.precision for each in kernels for region in each) - {""}


def is_decoder(path: Path) -> bool:
    """Whether the module file is that of a decoder. Raises ModuleFileError if it is none at all."""
    return "decoder" in open_archive(path).manifest


def read_decoder_summary(path: Path) -> DecoderSummary:
    """Read what is known of the decoder. No kernel is loaded, so files of other machines will do, too.

    Raises ModuleFileError.
    """
    manifest = open_archive(path).manifest
    if "decoder" not in manifest:
        raise ModuleFileError(f"{path} is a module, and no decoder.")
    with damage(path):
        about, modules = manifest["decoder"], manifest["modules"]
        if about["format"] != DECODER_FORMAT:
            raise ModuleFileError(f"{path} is a decoder that another Collage has compiled. Compile the model again.")
        kernels = about["parts"][0]

        def launched(place: Any) -> tuple[Region, ...]:
            program = read_program(modules[typed(int, place)]["program"])
            return tuple(region for region in program.launches if region.backend != VIEW)

        return DecoderSummary(
            typed(str, about["name"]),
            str(target_of(modules[0])),
            len(about["decoder"]["layers"]),
            typed(int, about["decoder"]["vocabulary"]),
            typed(int, about["max_length"]),
            typed(int, about["threads"]),
            len(about["parts"]),
            typed(float, about["tolerance"]),
            typed(float, about["error"]),
            {int(tokens): typed(float, cost) for tokens, cost in about["costs_ms"].items()},
            {int(n): tuple(map(launched, places)) for n, places in kernels["segments"].items()},
            {int(rows): launched(place) for rows, place in kernels["ends"].items()},
        )
