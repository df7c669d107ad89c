"""Opening what ``collage serve`` is given: a compiled decoder, or a folder with one and its tokenizer."""

from __future__ import annotations

from pathlib import Path

from collage.errors import CollageError, to_paste
from collage.serve.parallel.options import Parallelism
from collage.serve.reference import REFERENCE_FILE, open_reference
from collage.serve.runner import Runner

_SUFFIX = ".collage"


def folder_of(model: Path) -> Path:
    return model if model.is_dir() else model.parent


def open_runner(
    model: Path,
    block_count: int | None = None,
    cache: str = "float32",
    parallelism: Parallelism | None = None,
    share_weights: bool = False,
) -> Runner:
    """Load a decoder. ``block_count`` is the number of blocks of its cache, None for the runner's own choice.

    ``cache`` is the type of its elements: "float32", or "bfloat16" or "int8", which a reference decoder does not have.
    With ``parallelism``, several processes compute it, which the runner starts.
    Weights are read into memory of this process, in huge pages if the system has them, if that takes little of the
    free memory. With ``share_weights`` or ``parallelism`` they stay in the file, which all processes map.
    Raises CollageError when there is none, when it is no decoder, or when the blocks do not fit into memory.
    """
    if block_count is not None and block_count < 1:
        raise CollageError(f"the cache needs at least one block, not {block_count}.")
    if model.is_dir() and (model / REFERENCE_FILE).exists():
        if cache != "float32":
            raise CollageError(f"the reference decoder in {model} has no cache in {cache}.")
        if parallelism is not None:
            raise CollageError(f"{model} is the tiny decoder to try clients out; it runs in one process only.")
        return open_reference(model, block_count)
    file = _decoder_file(model)
    from collage.api import default_registry  # takes a second, and the server's own process needs none of it
    from collage.serve.decoder.file import load_decoder
    from collage.serve.decoder.memory import free_bytes, has_room_for_own
    from collage.serve.decoder.runner import DecoderRunner, use_todays_costs

    registry = default_registry()
    if parallelism is not None:
        from collage.serve.parallel.runner import ParallelRunner

        return ParallelRunner(file, registry, parallelism, block_count, cache)
    own = not share_weights and has_room_for_own(file.stat().st_size, free_bytes())
    compiled = load_decoder(file, registry, share=not own)
    runner = DecoderRunner(compiled, registry, block_count, cache)
    use_todays_costs(runner)
    return runner


def blocks_of_one(
    model: Path,
    block_count: int | None,
    cache: str,
    parallelism: Parallelism | None,
    runners: int,
) -> int | None:
    """The blocks of the cache of each of ``runners`` runners on this machine, which all get the same.

    Each has an equal share of the memory that is free before any of them has begun. The arguments are those of
    ``open_runner``, which takes what this returns. Raises CollageError as that does.
    """
    if model.is_dir() and (model / REFERENCE_FILE).exists():
        return block_count
    from collage.serve.decoder.file import cache_in
    from collage.serve.decoder.memory import block_bytes, chosen_blocks, free_bytes

    heads, layers, max_length = cache_in(_decoder_file(model))
    bytes_each = block_bytes(heads, layers, cache, 1 if parallelism is None else parallelism.parts)
    return chosen_blocks(block_count, bytes_each, max_length, free_bytes() // runners)


def threads_of(model: Path) -> int:
    """The threads that a decoder was compiled for. Its weights are not read. Raises CollageError."""
    if model.is_dir() and (model / REFERENCE_FILE).exists():
        return 1
    file = _decoder_file(model)
    from collage.serve.decoder.file import threads_in

    return threads_in(file)


def _decoder_file(model: Path) -> Path:
    if not model.exists():
        raise CollageError(f"there is no {model}; give a compiled decoder, a folder that has one, or a module.")
    if not model.is_dir():
        if model.suffix == ".onnx":
            raise CollageError(
                f"{model} is not compiled; {to_paste('compile-decoder', model)} does that for a decoder, and "
                f"{to_paste('compile', model, '-o', model.with_suffix(_SUFFIX))} for any other model."
            )
        return model
    found = sorted(model.glob(f"*{_SUFFIX}"))
    if len(found) != 1:
        if not found and any((*model.glob("*.onnx"), *model.glob("onnx/*.onnx"))):
            command = f"collage compile-decoder {model} -o {model / model.resolve().name}{_SUFFIX}"
            raise CollageError(f"the decoder in {model} is not compiled; `{command}` does that.")
        names = ", ".join(each.name for each in found) or "none"
        raise CollageError(f"{model} must have one compiled decoder (*{_SUFFIX}); it has {names}.")
    return found[0]
