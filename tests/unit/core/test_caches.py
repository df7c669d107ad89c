"""Reading the caches of a CPU."""

from __future__ import annotations

from pathlib import Path

from collage.core.caches import UNKNOWN, Cache, caches


def write(folder: Path, number: int, **files: str) -> None:
    place = folder / f"index{number}"
    place.mkdir()
    for name, text in files.items():
        (place / name).write_text(text + "\n")


def test_data_caches_in_order(tmp_path: Path) -> None:
    write(tmp_path, 3, level="3", size="32M", type="Unified", shared_cpu_list="0-7")
    write(tmp_path, 0, level="1", size="48K", type="Data", shared_cpu_list="0,4")
    write(tmp_path, 1, level="1", size="32K", type="Instruction", shared_cpu_list="0,4")
    write(tmp_path, 2, level="2", size="2048K", type="Unified", shared_cpu_list="0,4")
    assert caches(tmp_path) == (
        Cache(1, 48 << 10, False),
        Cache(2, 2 << 20, False),
        Cache(3, 32 << 20, True),
    )


def test_what_is_not_told(tmp_path: Path) -> None:
    assert caches(tmp_path / "nowhere") == UNKNOWN
    write(tmp_path, 0, level="1", size="lots", type="Data", shared_cpu_list="0")
    write(tmp_path, 1, level="2", size="0K", type="Unified", shared_cpu_list="0")
    assert caches(tmp_path) == UNKNOWN
