"""Files in memory."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest

from collage.core.mapped_file import mapped_file


def maps_of(path: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(path))


def test_a_file_stays_in_memory_without_a_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "content"
    content = os.urandom(100_001)
    path.write_bytes(content)
    before = len(os.listdir("/proc/self/fd"))
    arrays = [np.frombuffer(mapped_file(path), np.uint8) for _ in range(50)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert maps_of(path) == 50
    path.unlink()
    assert all(array.tobytes() == content for array in arrays)
    part = arrays[0][1000:]
    del arrays
    gc.collect()
    assert maps_of(path) == 1
    assert part.tobytes() == content[1000:]
    del part
    gc.collect()
    assert maps_of(path) == 0


def test_empty_and_missing_files(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert len(mapped_file(tmp_path / "empty")) == 0
    with pytest.raises(FileNotFoundError):
        mapped_file(tmp_path / "missing")
