"""Headers for float16: those of NVRTC where it has any, whichever bindings it is called by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from collage.backends.base import UnsupportedError
from collage.backends.tvm_cuda_codegen import nvrtc

HALF = "#include <cuda_fp16.h>\n"


class Library:
    """Bindings of 13.5 or later, by which an NVRTC of some version is called."""

    def __init__(self, *version: int) -> None:
        self.version = version

    def nvrtcVersion(self) -> tuple[int, ...]:  # noqa: N802
        return (0, *self.version)

    def nvrtcInstallBundledHeaders(self, *_: Any) -> tuple[int]:  # noqa: N802
        if self.version < (13, 5):
            raise RuntimeError("function nvrtcInstallBundledHeaders is not found")
        return (0,)

    class nvrtcResult:  # noqa: N801
        """The answers."""

        NVRTC_SUCCESS = 0


def test_an_older_library_than_the_bindings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch brings NVRTC 13.0, and the bindings may be newer: the toolkit's headers are taken."""
    monkeypatch.setattr(nvrtc, "_toolkit_headers", lambda: tmp_path)
    assert nvrtc._include_paths(Library(13, 0), HALF) == [f"-I{tmp_path}", f"-I{tmp_path / 'cccl'}"]
    monkeypatch.setattr(nvrtc, "_toolkit_headers", lambda: None)
    with pytest.raises(UnsupportedError, match=r"NVRTC 13\.0 has no headers for float16"):
        nvrtc._include_paths(Library(13, 0), HALF)
