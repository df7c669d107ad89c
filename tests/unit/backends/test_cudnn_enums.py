"""The numbers of cuDNN's graph interface are those of its header, where the wheel of cuDNN is installed."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from collage.backends.cudnn_kernels import enums
from collage.backends.cudnn_kernels.enums import CudnnEnum

_ENUMS = [each for each in vars(enums).values() if isinstance(each, type) and issubclass(each, CudnnEnum)]
_ENTRY = re.compile(r"\b(CUDNN_\w+)\s*(?:=\s*(\w+))?\s*(?:,|$|})", re.MULTILINE)


def header() -> Path:
    """``cudnn_graph.h`` of the wheel. The test is skipped without it."""
    spec = find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(folder) / "cudnn" / "include" / "cudnn_graph.h"
        if path.exists():
            return path
    pytest.skip("the wheel of cuDNN is not installed")


def read_numbers(text: str) -> dict[str, int]:
    """The members of all enumerations of a C header, by name."""
    text = re.sub(
        r"//[^\n]*|/\*.*?\*/|\bCUDNN_DEPRECATED_ENUM\b|^[ \t]*#[^\n]*$",
        "",
        text,
        flags=re.DOTALL | re.MULTILINE,
    )
    found: dict[str, int] = {}
    for body in re.findall(r"typedef enum\s*\w*\s*\{(.*?)\}", text, re.DOTALL):
        following = 0
        for name, given in _ENTRY.findall(body):
            value = following if not given else found[given] if given in found else int(given, 0)
            found[name], following = value, value + 1
    return found


@pytest.mark.parametrize("kind", [each for each in _ENUMS if each is not CudnnEnum])
def test_numbers(kind: type[CudnnEnum]) -> None:
    known = read_numbers(header().read_text())
    for member in kind:
        assert known[kind.header_name(member.name)] == member.value, member
