"""Checkpoints of a training: a folder for a step with a file for each stage, and a file that names the last folder.

Weights and optimizer state are by the names of the weights, so that another plan can go on from them.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collage.core.new_file import new_file
from collage.errors import UsageError
from collage.graphpipe.graph import read_json, write_json

_LAST = "last.json"


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of a training in a folder, one after each ``every`` steps and one at the end.

    A process that is killed at any moment leaves the last whole checkpoint.
    """

    folder: Path
    every: int

    @property
    def there(self) -> bool:
        """Whether there is a whole checkpoint."""
        return (self.folder / _LAST).exists()

    def due(self, step: int, steps: int) -> bool:
        """Whether there is a checkpoint after so many steps of ``steps``."""
        return step % self.every == 0 or step == steps

    def write(self, step: int, stage: int, state: Mapping[str, Any]) -> None:
        """Write the file of a stage. Raises CollageError."""
        import torch

        place = self._place(step)
        place.mkdir(parents=True, exist_ok=True)
        with new_file(place / f"stage-{stage}.pt") as stream:
            torch.save(dict(state), stream)

    def finish(self, step: int, stages: int) -> None:
        """Make a checkpoint, whose files are all written, the last one, and remove older ones. Raises CollageError."""
        write_json(self.folder / _LAST, {"step": step, "stages": stages})
        for each in self.folder.glob("step-*"):
            if each != self._place(step):
                shutil.rmtree(each, ignore_errors=True)

    def read(self) -> tuple[int, dict[str, Any]]:
        """The steps that are done, and the state of all stages together. Raises UsageError for a damaged one."""
        import torch

        found: dict[str, Any] = {"weights": {}, "state": {}, "groups": []}
        last: Any = read_json(self.folder / _LAST)
        try:
            step, stages = int(last["step"]), int(last["stages"])
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"the checkpoint in {self.folder} is damaged: {_LAST} names no step.") from error
        for stage in range(stages):
            try:
                part = torch.load(self._place(step) / f"stage-{stage}.pt", weights_only=True)
            except Exception as error:
                raise UsageError(
                    f"the checkpoint in {self.folder} is damaged: stage {stage} cannot be read."
                ) from error
            found["weights"] |= part["weights"]
            found["state"] |= part["state"]
            found["groups"] = found["groups"] or part["groups"]
        return step, found

    def _place(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"
