"""Temporary folders: whose maker lives, stay; all others are swept away, by whoever comes next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from collage.core.child_process import command_for, write_message
from collage.core.new_file import new_file
from collage.core.temporary import TemporaryFolder, sweep
from collage.measure.worker.process import WorkerProcess
from collage.measure.worker.whole_protocol import InitWhole
from tests.helpers.models import conv_net

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Temporary folders of this process are made here."""
    found = tmp_path / "tmp"
    found.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(found))
    monkeypatch.setenv("TMPDIR", str(found))
    return found


def names(place: Path) -> list[str]:
    return sorted(each.name for each in place.iterdir())


def run(program: str, *arguments: object, **options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, **options)


HOLD = """
import sys
from collage.core.temporary import TemporaryFolder
folders = [TemporaryFolder("model") for _ in range(2)]
(folders[0].path / "model.onnx").write_text("weights")
(folders[0].path / "values").mkdir()
(folders[0].path / "values" / "0.npy").write_text("0")
print(*(each.path for each in folders), flush=True)
sys.stdin.read()
"""


def test_a_folder_goes_with_what_is_in_it_when_the_block_ends(place: Path) -> None:
    with TemporaryFolder("model") as path:
        assert path.parent == place
        (path / "values").mkdir()
        (path / "values" / "0.npy").write_text("0")
        sweep()
        assert (path / "values" / "0.npy").exists()  # its maker lives
    assert names(place) == []


def test_who_is_killed_leaves_folders_that_the_next_sweep_removes(place: Path) -> None:
    process = run(HOLD)
    assert process.stdout is not None
    first, second = map(Path, process.stdout.readline().split())
    sweep()
    assert (first / "values" / "0.npy").exists()
    assert second.exists()
    process.kill()
    process.communicate()
    sweep()
    assert names(place) == []


def test_what_is_left_in_place_goes_when_the_process_ends(place: Path) -> None:
    process = run(HOLD)
    process.communicate("")
    assert (process.returncode, names(place)) == (0, [])


FORK = """
import os, sys, time
from collage.core.temporary import TemporaryFolder
folder = TemporaryFolder("model")
if os.fork() == 0:
    print("begun", flush=True)
    sys.stdin.close()
    time.sleep(float(sys.argv[1]))
    sys.exit()  # with all that happens at a process's end
sys.stdin.read()
os.wait()
assert folder.path.exists()
"""


def test_a_fork_neither_removes_nor_holds_its_parents_folders(place: Path) -> None:
    process = run(FORK, 2.0)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.kill()
    process.wait()
    sweep()  # the fork still runs
    assert names(place) == []
    process.communicate()
    child = run(FORK, 0.0)
    child.communicate("")
    assert (child.returncode, names(place)) == (0, [])


def test_what_is_not_ours_stays(place: Path, tmp_path: Path) -> None:
    """Other names, links, files, and folders without a lock that hold anything."""
    (place / "collage-measure-abcdefgh").mkdir()
    (place / "collage-model-abcdefgh.tmp.d").mkdir()
    (place / "collage-model-abcdefgh.tmp").mkdir()
    (place / "collage-model-abcdefgh.tmp" / "notes.txt").write_text("of a user")
    (place / "collage-file-abcdefgh.tmp").write_text("a file")
    target = tmp_path / "target"
    target.mkdir()
    (target / "owner.lock").write_text("")
    (place / "collage-link-abcdefgh.tmp").symlink_to(target)
    trap = place / "collage-trap-abcdefgh.tmp"
    trap.mkdir()
    (trap / "owner.lock").symlink_to(target / "owner.lock")
    before = names(place)
    sweep()
    sweep(place / "nowhere")
    assert names(place) == before
    assert names(target) == ["owner.lock"]


def test_a_worker_knows_that_its_parent_was_gone_before_it_began(place: Path) -> None:
    """As above, with the folder named and the parent dead before Python even starts in the child."""
    left = place / "collage-measure-abcdefgh.tmp"
    own = place / "collage-worker-abcdefgh.tmp"
    for each in (left, own):
        each.mkdir()
        (each / "owner.lock").write_text("")
    gone = subprocess.Popen(["true"])
    gone.wait()
    reader, writer = os.pipe()
    with subprocess.Popen(
        command_for("collage.measure.worker.main", gone.pid),
        stdin=reader,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"TMPDIR": str(own)},
    ) as worker:
        os.close(reader)
        write_message(writer, InitWhole(str(left), (), {}, 1))
        os.close(writer)
        assert worker.wait(60) == 0
    assert names(place) == []


def test_signals_to_the_whole_group_are_the_parents_to_handle(place: Path) -> None:
    """A service that is stopped gets SIGTERM in all of its processes: that must not look like a kernel's crash."""
    worker = WorkerProcess(1)
    folder = TemporaryFolder("whole")
    try:
        worker.begin(InitWhole(str(folder.path), (), {}, 1))
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            os.kill(worker._process.pid, number)
        worker.begin(InitWhole(str(folder.path), (), {}, 1))
        assert worker.alive
    finally:
        worker.kill()
        folder.remove()


WRITE = """
import sys
from pathlib import Path
from collage.core.new_file import new_file
with new_file(Path(sys.argv[1])) as stream:
    stream.write(b"half")
    print("begun", flush=True)
    sys.stdin.read()
"""


def test_half_written_files_of_the_killed_are_removed_by_the_next_writer(tmp_path: Path) -> None:
    path = tmp_path / "out[1].collage"
    writers = [run(WRITE, path) for _ in range(2)]
    for each in writers:
        assert each.stdout is not None
        assert each.stdout.readline() == "begun\n"
    writers[0].kill()
    writers[0].communicate()
    assert len([*tmp_path.glob(".*.part")]) == 2
    with new_file(path) as stream:
        stream.write(b"whole")
        assert len([*tmp_path.glob(".*.part")]) == 2  # ours, and that of the one who lives
    assert path.read_bytes() == b"whole"
    writers[1].communicate("")
    assert (path.read_bytes(), names(tmp_path)) == (b"half", ["out[1].collage", "tmp"])


STUCK = """
import sys, time
from collage.cli import main as cli
from collage.core.temporary import TemporaryFolder
import click
@click.command()
@click.argument("how")
def stuck(how):
    folder = TemporaryFolder("model")
    (folder.path / "model.onnx").write_text("weights")
    print("begun", flush=True)
    while True:
        try:
            time.sleep(60)
        except BaseException:
            if how != "swallow":
                raise
cli.main.add_command(stuck)
from collage.cli import signals
signals._PATIENCE_S = 0.2
cli.main(["stuck", sys.argv[1]])
"""


@pytest.mark.parametrize(("how", "number"), [("raise", signal.SIGTERM), ("swallow", signal.SIGHUP)])
def test_a_command_that_is_ended_cleans_up_first(place: Path, how: str, number: int) -> None:
    """Also where what is raised is swallowed."""
    process = run(STUCK, how, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, names(place)) == (128 + number, [])
    if how == "raise":
        assert errors == f"collage: ended by {signal.Signals(number).name}.\n"


def test_an_ignored_signal_stays_ignored(place: Path) -> None:
    """As under nohup."""
    process = run(
        "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + STUCK,
        "raise",
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_compile_killed_within_seconds_leaves_nothing_for_long(place: Path, tmp_path: Path, number: int) -> None:
    """At moments from the first import to the worker's first kernels; the next sweep, at the latest, removes all."""
    import onnx

    onnx.save_model(conv_net(), str(tmp_path / "net.onnx"))
    for seconds in (1.0, 3.0):
        command = ["-m", "collage", "compile", tmp_path / "net.onnx", "-o", tmp_path / "out.collage"]
        options: Sequence[object] = ("--db", tmp_path / "db.sqlite", "--backends", "onednn,tvm", "--quiet")
        process = subprocess.Popen([sys.executable, *map(str, (*command, *options))], stderr=subprocess.PIPE, cwd=ROOT)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(number)
        process.communicate(timeout=30)
        assert process.returncode in (0, -number, 128 + number)
        end = time.monotonic() + 60.0  # a busy machine starts a worker slowly
        while number == signal.SIGKILL and names(place) and time.monotonic() < end:
            sweep()  # a worker that had just been forked holds what it inherited until it notices
            time.sleep(0.1)
        left = sorted(str(each.relative_to(place)) for each in place.rglob("*"))
        assert left == [], seconds


IMPORTING = """
import os, signal, sys
import click
from collage.cli import main as cli
class Named:
    def __set_name__(self, owner, name):
        os.kill(os.getpid(), int(sys.argv[2]))
@click.command()
@click.argument("number")
def importing(number):
    class Owner:
        named = Named()
cli.main.add_command(importing)
cli.main(["importing", sys.argv[2]])
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_during_an_import_is_no_fault(place: Path, number: int) -> None:
    """Python 3.11 makes a RuntimeError of what is raised while a class is made."""
    process = run(IMPORTING, "", int(number), stderr=subprocess.PIPE)
    _, errors = process.communicate(timeout=30)
    told = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
    assert (process.returncode, errors) == (128 + number, f"collage: {told}.\n")
