"""The decoders of the study, compiled once for one thread and kept in a folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from collage.api import default_registry
from collage.core.progress import Progress
from collage.serve.decoder.build import compile_decoder, compile_divided
from collage.serve.decoder.compile import DecoderOptions
from collage.serve.decoder.file import save_decoder
from scripts.lib.decoders.build import decoder
from scripts.lib.decoders.shape import LLAMA, NAMED, DecoderShape, small

LONGEST = 102_400
"""The most cached tokens of the study."""
_ROOM = 64

SHAPES = {
    "layer": DecoderShape(LLAMA, 1, 4096, 32, 32, 11008, 256, LONGEST + _ROOM),
    "gpt2": replace(NAMED["gpt2_124m"], positions=LONGEST + _ROOM),
    "tiny": replace(small(NAMED["qwen2_like"], 4), positions=1024),
}
"""One layer of Llama-7B, as in the thesis, with a vocabulary of 256; GPT-2 124M with a longer table of positions; and a
tiny one for tests of the study."""


def compiled_file(name: str, folder: Path, most_batch: int, db: Path | None, processes: int = 1) -> Path:
    """The file of a decoder for iterations of up to so many tokens, made when it is missing.

    With ``processes``, it is divided among them by heads and columns.
    """
    divided = f"-tensor-{processes}" if processes > 1 else ""
    path = folder / f"parallel-{name}-{most_batch}{divided}.collage"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    shape = SHAPES[name]
    beside = folder / f"parallel-{name}.bin"
    source = folder / f"parallel-{name}.onnx"
    import onnx

    onnx.save_model(decoder(shape, beside=beside), str(source))
    buckets = sorted({1, *(batch for batch in (2, 4, 8, 16, 32) if batch < most_batch), most_batch})
    length = min(shape.positions, LONGEST + _ROOM)
    options = DecoderOptions(buckets, length, threads=1, db=db, quick=True, processes=processes)
    if processes > 1:
        first, *others = compile_divided(source, options, default_registry(), _quiet)
        save_decoder(first, path, others)
    else:
        save_decoder(compile_decoder(source, options, default_registry(), _quiet), path)
    source.unlink()
    beside.unlink()
    return path


def _quiet(progress: Progress) -> None:
    pass
