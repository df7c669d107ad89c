"""What a new file replaces: a regular file with its permissions, behind links, too, and nothing else."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import IO

import pytest

from collage.cli.files import check_writable
from collage.core.new_file import new_file
from collage.errors import CollageError


def write(path: Path, content: bytes = b"new") -> None:
    with new_file(path) as stream:
        stream.write(content)


def test_a_link_still_leads_to_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "versions"
    folder.mkdir()
    version, current = folder / "v3", tmp_path / "current"
    version.write_bytes(b"old")
    current.symlink_to(version)
    check_writable(current)
    write(current)
    assert current.is_symlink() and version.read_bytes() == b"new"
    assert [each.name for each in folder.iterdir()] == ["v3"]


def test_permissions_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.touch(0o600)
    write(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_the_umask_is_the_systems_to_apply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int) -> None:
    """It belongs to all threads of the process, so that nobody may change it in order to read it."""
    before = os.umask(umask)
    try:
        with monkeypatch.context() as patch:
            patch.delattr(os, "umask")
            write(tmp_path / "new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o666 & ~umask


def test_a_secret_is_never_open_to_others(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.touch(0o600)
    with new_file(path) as stream:
        assert stat.S_IMODE(os.fstat(stream.fileno()).st_mode) == 0o600
        path.unlink()  # by somebody else
        stream.write(b"new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_devices_and_pipes_are_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/null")):
        for act in (check_writable, write):
            with pytest.raises(CollageError, match=rf"cannot write {path}: it is no regular file"):
                act(path)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_file_that_fails_half_way_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fails(stream: IO[bytes]) -> None:
        stream.write(b"half")
        raise OSError("full")

    with pytest.raises(CollageError, match=r"cannot write .*: full"), new_file(path) as stream:
        fails(stream)
    assert path.read_bytes() == b"old" and [*tmp_path.iterdir()] == [path]
