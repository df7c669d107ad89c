"""The file of a compiled decoder: a module file with all segments, and what connects them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collage._version import __version__
from collage.backends.registry import Registry
from collage.core.new_file import new_file
from collage.core.typed import typed
from collage.errors import ModuleFileError
from collage.kernel.buffers import as_bytes
from collage.module.archive import MappedArchive, NewArchive
from collage.module.file import FORMAT, Reading, damage, open_archive
from collage.module.load import refuse_other_machine
from collage.module.save import put_parts
from collage.runtime.parts import Parts
from collage.serve.attention import Heads, Rotations
from collage.serve.decoder.compiled import After, CompiledDecoder, Wiring
from collage.serve.decoder.description import Decoder

DECODER_FORMAT = 3
"""The format of what a decoder's file has besides that of modules."""


def save_decoder(compiled: CompiledDecoder, path: Path, others: Sequence[CompiledDecoder] = ()) -> None:
    """Write one file that ``load_decoder`` reads. Weights of kernels that share them are stored once.

    ``others`` are the parts of the processes after the first one, where there are several. Raises OSError when the file
    cannot be written.
    """
    with new_file(path) as stream, NewArchive(stream) as archive:
        tables = {
            name: archive.put("arrays", as_bytes(np.ascontiguousarray(table)).data)
            for name, table in (("cos", compiled.rotations.cos), ("sin", compiled.rotations.sin))
        }
        modules: list[dict[str, Any]] = []

        def put(parts: Parts) -> int:
            modules.append(put_parts(archive, parts))
            return len(modules) - 1

        def kernels(each: CompiledDecoder) -> dict[str, Any]:
            return {
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
                    "heads": asdict(compiled.heads),
                    "max_length": compiled.max_length,
                    "threads": compiled.threads,
                    "wiring": [asdict(each) for each in compiled.wiring],
                    "tables": tables,
                    "parts": [kernels(each) for each in (compiled, *others)],
                    "after": [asdict(each) for each in compiled.after],
                    "costs_ms": {str(n): cost for n, cost in compiled.costs_ms.items()},
                    "body_ms": {str(n): cost for n, cost in compiled.body_ms.items()},
                    "error": compiled.error,
                    "tolerance": compiled.tolerance,
                },
            }
        )


def load_decoder(
    path: Path, registry: Registry, *, share: bool = True, trusted_key: Path | None = None, rank: int = 0
) -> CompiledDecoder:
    """Read a decoder's file, and check it against this machine and the installed libraries.

    Weights are read in the mapped file, or with ``share`` off in memory of this process. With ``trusted_key``, the path
    of a public key, the file must be signed by its owner. Of a decoder for several processes, this is the part of
    process ``rank``. Raises ModuleFileError.
    """
    archive = _opened(path, share, trusted_key)
    reading = Reading(archive, verify=trusted_key is not None, own=trusted_key is not None)
    available = registry.availability()
    with damage(path):
        modules = archive.manifest["modules"]
        for each in modules:
            refuse_other_machine(path, each, available)
        about = archive.manifest["decoder"]
        if about["format"] != DECODER_FORMAT:
            raise ValueError(f"its decoder has the format {about['format']}, not {DECODER_FORMAT}")
        length = typed(int, about["max_length"])
        heads = typed(Heads, about["heads"])
        cos, sin = (
            _table(reading, typed(str, about["tables"][name]), (length, heads.rotary // 2))
            for name in ("cos", "sin")
        )
        decoder = typed(Decoder, about["decoder"])
        for layer in decoder.layers:
            if (layer.heads, layer.kv_heads, layer.dim) != (heads.heads, heads.kv_heads, heads.dim):
                raise ValueError(f"{layer.node} has other heads than the decoder")
        parts = about["parts"][rank]
        return CompiledDecoder(
            typed(str, about["name"]),
            decoder,
            heads,
            length,
            typed(int, about["threads"]),
            tuple(typed(list[Wiring], about["wiring"])),
            Rotations(cos, sin),
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
        )


def threads_in(path: Path, trusted_key: Path | None = None) -> int:
    """The threads that a decoder in a file was compiled for. Raises ModuleFileError."""
    archive = _opened(path, True, trusted_key)
    with damage(path):
        return typed(int, archive.manifest["decoder"]["threads"])


def cache_in(path: Path, trusted_key: Path | None = None) -> tuple[Heads, int, int]:
    """The heads of a decoder in a file, its layers, and the most tokens of a sequence. Raises ModuleFileError."""
    archive = _opened(path, True, trusted_key)
    with damage(path):
        about = archive.manifest["decoder"]
        layers = len(typed(Decoder, about["decoder"]).layers)
        return typed(Heads, about["heads"]), layers, typed(int, about["max_length"])


def _opened(path: Path, share: bool, trusted_key: Path | None) -> MappedArchive:
    archive = open_archive(path, share=share, trusted_key=trusted_key)
    if "decoder" not in archive.manifest:
        raise ModuleFileError(
            f"{path} is a module, and no decoder: compile one for serving from a decoder's ONNX file."
        )
    return archive


def _table(reading: Reading, name: str, shape: tuple[int, int]) -> NDArray[np.float32]:
    raw = np.frombuffer(reading.archive.get(name, check=True, own=reading.own), np.uint8)
    return raw.view(np.float32).reshape(shape)
