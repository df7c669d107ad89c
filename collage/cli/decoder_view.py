"""A compiled decoder's file for people and as JSON: what ``compile-decoder`` and ``show`` print of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from collage.cli.console import print_table, say

if TYPE_CHECKING:
    from collage.schedule.region import Region
    from collage.serve.decoder.file import DecoderSummary


def decoder_object(found: DecoderSummary, *, kernels: bool = False) -> dict[str, Any]:
    """The object that ``--json`` prints, with what runs each segment where ``kernels`` are asked for."""
    about = {
        "model": found.name,
        "layers": found.layers,
        "vocabulary": found.vocabulary,
        "max_length": found.max_length,
        "threads": found.threads,
        "processes": found.processes,
        "tolerance": found.tolerance,
        "max_error": found.error,
        "reduced": bool(found.precisions),
        "costs_ms": {str(tokens): cost for tokens, cost in found.costs_ms.items()},
    }
    if not kernels:
        return about
    return {
        **about,
        "target": found.target,
        "buckets": sorted(found.segments),
        "segments": {
            str(tokens): [[region.summary() for region in each] for each in segments]
            for tokens, segments in found.segments.items()
        },
        "ends": {str(rows): [region.summary() for region in each] for rows, each in found.ends.items()},
    }


def say_times(found: DecoderSummary) -> None:
    """Print the time of an iteration for each number of tokens, and the error of the logits."""
    if found.costs_ms:
        say("tokens  ms an iteration")
    for tokens, cost in found.costs_ms.items():
        say(f"{tokens:6}  {cost:.2f}")
    if found.tolerance:
        named = " and ".join(sorted(found.precisions))
        what = f"with kernels in {named}" if named else "all in float32"
        say(f"\nerror of the logits: {found.error:.2g} of the largest one, {found.tolerance:g} allowed; {what}")


def show_decoder(found: DecoderSummary) -> None:
    """Print what the decoder is, its times and error, and the backends of each segment by number of tokens."""
    processes = f", {found.processes} processes" if found.processes > 1 else ""
    say(f"{found.name}: a decoder of {found.layers} layers, compiled for serving (`collage serve`)")
    say(f"vocabulary {found.vocabulary}, sequences of up to {found.max_length} tokens")
    say(f"for {found.target}{processes}\n")
    say_times(found)
    rows = []
    for tokens, segments in sorted(found.segments.items()):
        for numbers, kernels in _runs(segments):
            rows.append((str(tokens), numbers, str(len(kernels)), _backends(kernels)))
    for count, kernels in sorted(found.ends.items()):
        rows.append((f"{count} rows", "logits", str(len(kernels)), _backends(kernels)))
    say("")
    print_table(("tokens", "segment", "kernels", "backends"), rows)


def _runs(segments: Sequence[Sequence[Region]]) -> list[tuple[str, Sequence[Region]]]:
    """Segments with equal backends that follow each other, as ``3`` or ``1 to 11``, and the kernels of each."""
    found: list[tuple[int, int, Sequence[Region]]] = []
    for number, kernels in enumerate(segments):
        if found and _backends(found[-1][2]) == _backends(kernels):
            found[-1] = (found[-1][0], number, kernels)
        else:
            found.append((number, number, kernels))
    return [(f"{a}" if a == b else f"{a} to {b}", kernels) for a, b, kernels in found]


def _backends(kernels: Iterable[Region]) -> str:
    """How many kernels each backend has, most first: ``native 4, onednn 2 (bf16)``."""
    counts = Counter((each.backend, each.precision) for each in kernels)
    return ", ".join(
        f"{name} {count}" + (f" ({precision})" if precision else "")
        for (name, precision), count in sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    )
