"""How far a long piece of work has come: ``compile`` and ``bench`` report it while they work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """``done`` of ``total`` steps of a stage; a total of 0 means that the number of steps is not known.

    ``text`` names the current step for people: ``openvino conv2d+add+relu``. ``best`` is the best result so far in
    words, where there is one already. ``note`` is what they should know besides, such as why it takes so long.
    """

    stage: str
    done: int
    total: int
    text: str = ""
    best: str = ""
    note: str = ""
