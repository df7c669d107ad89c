"""How far a long piece of work is: what ``compile`` and ``bench`` tell whoever is watching."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """``done`` of ``total`` steps of a stage; a total of 0 means that nobody knows how many there will be.

    ``text`` names the step under way, for people: ``openvino conv2d+add+relu``.
    """

    stage: str
    done: int
    total: int
    text: str = ""
