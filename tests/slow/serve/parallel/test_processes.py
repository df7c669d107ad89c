"""Decoders on real processes that send tensors over gloo: answers, and what happens when one of them dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from collage.errors import CollageError, UsageError
from collage.graph.dataflow import TensorType
from collage.native import team
from collage.serve import Engine, EngineOptions, Sampling
from collage.serve.model import open_runner
from collage.serve.parallel import pipeline_rank
from collage.serve.parallel.crew import own_cpus
from collage.serve.parallel.options import Parallelism
from collage.serve.runner import RunnerLostError, Slice
from tests.helpers.serve.parallel.fixtures import Ready
from tests.helpers.serve.parallel.running import BLOCKS, alive, answers, running, wait_until_gone
from tests.helpers.serve.served import ROOT, served
from tests.slow.serve.test_server import open_stream, rest_of

pytest.importorskip("torch", reason="torch is missing: pip install 'collage-compiler[parallel]'")


def test_processes_have_processors_that_no_other_team_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The team of process 0 takes one hyperthread of each core first, and so do the others of those that are left."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(team, "_siblings", lambda cpu: f"core {cpu // 2}")
    assert team.one_of_each_core_first(os.sched_getaffinity(0)) == [0, 2, 1, 3]
    assert [own_cpus(rank, 2, Parallelism("cache", 2)) for rank in range(2)] == [(0, 2), (1, 3)]
    assert own_cpus(1, 1, Parallelism("cache", 2)) == own_cpus(1, 2, Parallelism("cache", 3)) == ()


@pytest.fixture(scope="module")
def expected(qwen: Ready) -> list[tuple[int, ...]]:
    runner = open_runner(qwen.path, BLOCKS)
    found = answers(runner, EngineOptions(max_running=3))
    runner.close()
    return found


@pytest.mark.parametrize(("kind", "processes"), [("cache", 2), ("cache", 4), ("pipeline", 3)])
def test_answers_are_those_of_one_process(
    qwen: Ready, expected: list[tuple[int, ...]], kind: str, processes: int
) -> None:
    """Also with Orca's policy, which has as many iterations in flight as a pipeline has processes."""
    with running(qwen.path, kind, processes) as runner:
        assert len(runner.pids) == processes - 1
        assert answers(runner, EngineOptions(max_running=3)) == expected
        assert answers(runner, EngineOptions(max_running=2, policy="orca")) == expected


def test_other_values_than_rows_of_floats_do_not_cross_borders(qwen: Ready, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_rank, "_type", lambda *_: TensorType((8, 64), "int64"))
    with pytest.raises(UsageError, match=r"is int64 \[.*\] and is read by several layers"):
        pipeline_rank.stage_of(qwen.compiled, 1, 2)


@pytest.mark.parametrize("kind", ["cache", "pipeline"])
def test_a_killed_process_fails_all_requests(qwen: Ready, expected: list[tuple[int, ...]], kind: str) -> None:
    with running(qwen.path, kind) as runner:
        engine = Engine(runner, EngineOptions(max_running=2))
        streams = [engine.submit((1, 2, n), Sampling(max_tokens=150, temperature=0, ignore_eos=True)) for n in range(4)]
        next(iter(streams[0]))
        os.kill(runner.pids[0], signal.SIGKILL)
        for each in streams:  # those that wait for their turn, too
            with pytest.raises(CollageError, match=r"process 1 of the decoder has ended \(killed by SIGKILL\)"):
                each.result()
        with pytest.raises(CollageError, match="make a new one"):
            engine.submit((1, 2, 3))
        engine.close()
    with running(qwen.path, kind) as runner:
        assert answers(runner, EngineOptions(max_running=3)) == expected


@pytest.mark.parametrize(("kind", "policy"), [("cache", "chunked"), ("pipeline", "orca")])
def test_a_failure_in_the_first_process_fails_all_requests(
    qwen: Ready, monkeypatch: pytest.MonkeyPatch, kind: str, policy: str
) -> None:
    """The others are inside the iteration, and would take the next one's tensors for those of this one."""
    steps = iter(range(100))

    def step(slices: list[Slice]) -> object:
        if next(steps) == 5:
            raise MemoryError
        return whole(slices)

    with running(qwen.path, kind) as runner:
        pids, whole = runner.pids, runner._rank.step
        monkeypatch.setattr(runner._rank, "step", step)
        engine = Engine(runner, EngineOptions(max_running=2, policy=policy))
        sampling = Sampling(max_tokens=150, temperature=0, ignore_eos=True)
        streams = [engine.submit((1, 2, n), sampling) for n in range(4)]
        for each in streams:
            with pytest.raises(CollageError, match="process 0 of the decoder has failed: MemoryError"):
                each.result()
        engine.close()
        wait_until_gone(pids)
        with pytest.raises(RunnerLostError, match="process 0 of the decoder has failed: MemoryError"):
            runner.step([Slice((1,), 0, (0,), True)])


def test_a_process_killed_while_nothing_runs_is_noticed(qwen: Ready) -> None:
    with running(qwen.path, "cache", 3) as runner:
        pids = runner.pids
        engine = Engine(runner)
        os.kill(pids[1], signal.SIGKILL)
        wait_until_gone(pids)  # the others are of no use alone
        end = time.monotonic() + 5
        while time.monotonic() < end:
            try:
                engine.submit((1, 2), Sampling(max_tokens=1)).cancel()
            except CollageError as error:
                assert "make a new one" in str(error)  # noqa: PT017
                break
            time.sleep(0.02)
        else:
            pytest.fail("the engine takes requests without its processes")
        engine.close()
        with pytest.raises(RunnerLostError, match="process 2 of the decoder has ended"):
            runner.step([Slice((1,), 0, (0,), True)])


def test_a_process_that_does_not_answer_is_noticed(qwen: Ready) -> None:
    with running(qwen.path, "cache", 2, answer_s=2.0) as runner:
        pids = runner.pids
        slices = [Slice(tuple(range(8)), 0, (0, 1), True)]
        runner.step(slices)
        os.kill(pids[0], signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(RunnerLostError, match="has not answered for 2 s"):
            runner.step(slices)
        assert time.monotonic() - began < 20
        wait_until_gone(pids)


CHILD = """
import sys
from pathlib import Path
from collage.serve.model import open_runner
from collage.serve.parallel.options import Parallelism
from collage.serve.runner import Slice

runner = open_runner(Path(sys.argv[1]), 24, parallelism=Parallelism(sys.argv[2], 3))
print(*runner.pids, flush=True)
while True:
    runner.step([Slice(tuple(range(8)), 0, (0, 1), True)])
"""


def test_no_process_is_left_when_the_first_one_is_killed(qwen: Ready) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(qwen.path), "cache"], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        pids = [int(each) for each in process.stdout.readline().split()]
        assert len(pids) == 2 and all(map(alive, pids))
        process.kill()
    wait_until_gone(pids)


@pytest.mark.usefixtures("needs_server")
def test_the_server_starts_killed_processes_again(qwen: Ready) -> None:
    body = {"model": "m", "prompt": [1, 2, 3], "max_tokens": 30, "temperature": 0, "ignore_eos": True}
    with served(qwen.path, "--parallel", "cache", "--processes", "2") as server:
        status, _, first = server.ask("POST", "/v1/completions", body)
        assert status == 200, first
        streams = [open_stream(server, prompt=[n, 5], max_tokens=190) for n in range(3)]
        (worker,) = server.engine.children()
        worker.kill()
        for each in streams:
            rest = rest_of(each)
            assert b'"error"' in rest and b"killed by SIGKILL" in rest, rest
        end = time.monotonic() + 60
        while (found := server.ask("POST", "/v1/completions", body))[0] != 200:
            assert "try again" in found[2]["error"]["message"] and time.monotonic() < end, found
            time.sleep(0.1)
        assert found[2]["choices"] == first["choices"]
        pids = [each.pid for each in server.engine.children()]
        assert server.end() == 0
        wait_until_gone(pids)


def test_what_cannot_be_divided_is_refused(qwen: Ready) -> None:
    with pytest.raises(UsageError, match="4 layers are too few for 5 processes"):
        open_runner(qwen.path, parallelism=Parallelism("pipeline", 5))
    with pytest.raises(UsageError, match="2 processes or more, not 1"):
        Parallelism("cache", 1)
    with pytest.raises(UsageError, match="kind of parallelism"):
        Parallelism("tensors", 2)


def test_a_process_that_cannot_load_says_why(qwen: Ready, tmp_path: Path) -> None:
    """The first process has loaded the file, and it is damaged when the others do."""
    from collage.serve.parallel.crew import Crew
    from collage.serve.parallel.worker import RankSetup

    path = tmp_path / "it.collage"
    path.write_bytes(qwen.path.read_bytes()[:5000])
    crew = Crew(RankSetup(Parallelism("cache", 2), 0, path, BLOCKS, "float32", tmp_path, ()), 1)
    pids = crew.pids
    with pytest.raises(CollageError, match=r"it\.collage"):
        crew.meet()
    crew.close()
    wait_until_gone(pids)
