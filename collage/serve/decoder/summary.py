"""What a compiled decoder's file tells without its weights: what it is, its times, and what runs its segments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collage.backends.base import VIEW
from collage.core.typed import typed
from collage.errors import ModuleFileError
from collage.module.file import damage, open_archive, target_of
from collage.schedule.read_program import read_program
from collage.schedule.region import Region
from collage.serve.decoder.file import DECODER_FORMAT

Segments = tuple[tuple[Region, ...], ...]
"""The kernels of each segment, in launch order."""


@dataclass(frozen=True)
class DecoderSummary:
    """A decoder's file as ``collage show`` tells of it. The fields that ``CompiledDecoder`` has, too, are those.

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
        """The reduced precisions that some kernels compute in."""
        kernels = [*self.ends.values(), *(each for found in self.segments.values() for each in found)]
        return frozenset(region.precision for each in kernels for region in each) - {""}


def is_decoder(path: Path) -> bool:
    """Whether the module file is that of a decoder. Raises ModuleFileError where it is none at all."""
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
            raise ModuleFileError(
                f"{path} is a decoder that another Collage has compiled. Compile the model again."
            )
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
