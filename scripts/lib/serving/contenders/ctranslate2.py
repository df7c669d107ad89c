"""CTranslate2, which has no iteration-level scheduling: batches, of which answers leave when they have their tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.lib.serving.contender import (
    INT8,
    Contender,
    MissingError,
    Note,
    Setup,
    convert,
    serve_in_batches,
)
from scripts.lib.serving.trace import Arrival


class CTranslate2:
    """A generator. Its tokens have names, which are their ids in decimal."""

    def __init__(self, setup: Setup) -> None:
        try:
            import ctranslate2 as library
        except ImportError as error:
            raise MissingError("ctranslate2 is not installed") from error
        self._library = library
        self._running = setup.running
        named = "int8_float32" if setup.precision == INT8 else setup.precision
        self._type = "default" if setup.defaults else named
        self._generator = library.Generator(
            str(_converted(setup.folder)),
            device="cpu",
            compute_type=self._type,
            inter_threads=1,
            intra_threads=setup.threads,
        )

    def facts(self) -> Mapping[str, Any]:
        """The version and the settings."""
        return {
            "version": self._library.__version__,
            "compute_type": self._generator.compute_type,
            "batch": self._running,
        }

    def serve(self, arrivals: Sequence[Arrival], note: Note) -> None:
        """Serve the requests in batches of as many as wait."""
        serve_in_batches(lambda batch: self._run(batch, note), self._running, arrivals)

    def _run(self, batch: Sequence[tuple[int, Arrival]], note: Note) -> None:
        left = [each.tokens for _, each in batch]

        def token(result: Any) -> bool:
            at = result.batch_id
            if left[at]:
                note(batch[at][0], int(result.token_id))
                left[at] -= 1
            return not left[at]

        most = max(left)
        self._generator.generate_batch(
            [[str(each) for each in arrival.prompt] for _, arrival in batch],
            max_length=most,
            min_length=most,
            sampling_topk=1,
            beam_size=1,
            include_prompt_in_result=False,
            callback=token,
        )


def open_contender(name: str, setup: Setup) -> Contender:
    """The generator. Raises MissingError."""
    return CTranslate2(setup)


def _converted(folder: Path) -> Path:
    """The model in CTranslate2's form, in float32, which is made once."""
    found = folder / "ctranslate2"
    if (found / "model.bin").exists():
        return found
    command = ["ct2-transformers-converter", "--model", str(folder), "--output_dir", str(found), "--force"]
    convert(command)
    return found
