"""What a primitive does to its result before it stores it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from collage.backends.chains.functions import Eltwise
from collage.backends.onednn_kernels.description import Description


@dataclass(frozen=True)
class Binary:
    """The result combined with another tensor, which broadcasts to it."""

    algorithm: int
    operand: Description


PostOp: TypeAlias = "Eltwise | Binary"
