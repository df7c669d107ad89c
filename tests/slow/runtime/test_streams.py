"""Programs with launches side by side: every hazard of the arena is ordered, and the numbers are right."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collage.backends.view import View
from collage.graph.dataflow import Array, TensorType
from collage.kernel.kernel import Call, Kernel
from collage.kernel.options import BuildOptions
from collage.measure.timing.launch_times import NotedRuns, run_in_turns
from collage.native import NativeKernel, Step, Task, TaskError, core_problem, team_of
from collage.native.library import address_of
from collage.runtime import original
from collage.runtime.executor import Executor
from collage.schedule.program import Port, Program, make_program
from collage.schedule.read_program import read_program
from collage.schedule.region import Region
from collage.schedule.schedule import TEAM, begins, check

needs_core = pytest.mark.skipif(bool(core_problem()), reason=core_problem())

# n inputs at a, the output at b: the sum of all plus 1, element by element, slowly, as often as c says.
ADD = """
#include <stdint.h>
enum { SIZE = 64 };
int add(void *a, void *b, intptr_t n, void *c) {
  float **in = a, *out = b;
  if ((intptr_t)c < 0) return 7;
  for (int i = 0; i < SIZE; ++i) {
    volatile float sum;
    for (intptr_t again = 0; again <= (intptr_t)c; ++again) {
      sum = 1;
      for (intptr_t k = 0; k < n; ++k) sum += in[k][i];
    }
    out[i] = sum;
  }
  return 0;
}
"""
KIND = TensorType((64,), "float32")


@pytest.fixture(scope="module")
def add(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder: Path = tmp_path_factory.mktemp("add")
    (folder / "add.c").write_text(ADD)
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(folder / "add.so"), str(folder / "add.c")]
    subprocess.run(command, check=True, timeout=60)
    return ctypes.CDLL(str(folder / "add.so"))


class AddKernel(NativeKernel):
    """Adds its inputs and 1. It takes longer the larger ``delay`` is, and fails where that is negative."""

    def __init__(self, library: ctypes.CDLL, delay: int) -> None:
        super().__init__(BuildOptions().threads)
        self.library, self.delay = library, delay

    def steps(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Step]:
        pointers = (ctypes.c_void_p * len(inputs))(*(array.ctypes.data for array in inputs))
        task = Task(
            address_of(self.library.add),
            a=ctypes.addressof(pointers),
            b=int(outputs[0].ctypes.data),
            n=len(inputs),
            c=self.delay,
            keep=(pointers, tuple(inputs), tuple(outputs)),
        )
        return [Step((task,))]


class PlainAddKernel(Kernel):
    """Adds its inputs and 1 in Python, and not on the team."""

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        def run() -> None:
            outputs[0][:] = 1 + sum(inputs)

        return run


@st.composite
def programs(draw: st.DrawFn) -> tuple[Program, list[int]]:
    """A network of additions on a team of 2 or 3 threads, with some launches on streams, and the delay of each launch.

    Sometimes values are joined, and only splits read the result. Additions may overwrite what they read.
    """
    threads, inputs = draw(st.integers(2, 3)), draw(st.integers(1, 2))
    count = draw(st.integers(1, 14))
    regions: list[Region] = []
    delays: list[int] = []
    types = dict.fromkeys(range(inputs), KIND)
    vectors = list(range(inputs))
    joined: list[int] = []

    def new(kind: TensorType) -> int:
        types[len(types)] = kind
        return len(types) - 1

    for v in range(count):
        what = draw(st.sampled_from(["add", "add", "add", "join", "split"]))
        few, some = (
            st.lists(st.sampled_from(each), min_size=1, max_size=3, unique=True)
            for each in (vectors[-5:], [*vectors[-5:], *joined[-2:]])
        )
        if what == "join" and len(parts := draw(some)) > 1:
            joined.append(new(TensorType((sum(types[part].size for part in parts),), "float32")))
            regions.append(Region("view", ("concat",), (v,), (), tuple(parts), (joined[-1],), threads=threads))
        elif what == "split" and joined:
            whole = draw(st.sampled_from(joined))
            found = [new(KIND) for _ in range(types[whole].size // 64)]
            regions.append(Region("view", ("split",), (v,), (), (whole,), tuple(found), threads=threads))
            vectors += found
        else:
            stream = draw(st.integers(-1, threads - 1))
            on = {"threads": threads} if stream == TEAM else {"threads": 1, "stream": stream}
            reads = tuple(draw(few))
            if draw(st.integers(0, 2)) == 0:
                on["scans"] = tuple(sorted(set(reads[:2])))
            on["in_place"] = draw(st.sampled_from([(), (0,), tuple(range(len(reads)))]))
            vectors.append(new(KIND))
            regions.append(Region("add", ("add",), (v,), (), reads, (vectors[-1],), **on))
            delays.append(draw(st.sampled_from([0, 1, 20, 100])))
    outputs = sorted({vectors[-1], *draw(st.lists(st.sampled_from([*vectors, *joined]), max_size=2))})
    ports = [[Port(f"v{v}", v, types[v]) for v in values] for values in (range(inputs), outputs)]
    return make_program(regions, *ports, types, threads), delays


def written(program: Program) -> dict[int, set[int]]:
    """For each value, the values that it is made of, each written by a launch or by the caller."""
    found: dict[int, set[int]] = {p.value: {p.value} for p in program.inputs}
    for region in program.regions:
        for value in region.outputs:
            launched = region in program.launches
            found[value] = {value} if launched else set().union(*(found[v] for v in region.inputs))
    return found


@settings(max_examples=300, deadline=None)
@given(programs())
def test_every_hazard_of_the_arena_is_ordered(drawn: tuple[Program, list[int]]) -> None:
    """Events order reads after writes, and the memory plan orders writes after reads."""
    program, _ = drawn
    ordered, made_of = program.ordered, written(program)
    check(ordered.dag, ordered.schedule)
    assert read_program(program.to_json()) == program
    writer = {value: v for v, region in enumerate(program.launches) for value in region.outputs}
    uses: dict[int, set[int]] = {value: {v} for value, v in writer.items()}
    for v, region in enumerate(program.launches):
        for value in {part for read in region.inputs for part in made_of[read]}:
            uses.setdefault(value, set()).add(v)
            if value in writer:
                assert ordered.before[v] >> writer[value] & 1
    ends = {part for port in program.outputs for part in made_of[port.value]}
    places = {
        value: range(at := program.offset(value), at + program.types[value].nbytes)
        for value, parts in made_of.items()
        if parts == {value}
    }
    for a, b in combinations(places, 2):
        if places[a].stop <= places[b].start or places[b].stop <= places[a].start:
            continue
        first, second = sorted((a, b), key=lambda value: writer.get(value, -1))
        assert second in writer  # inputs all exist at the start
        assert first not in ends
        launch = program.launches[writer[second]]
        in_place = {part for i in launch.in_place for part in made_of[launch.inputs[i]]}
        before = uses.get(first, set()) - ({writer[second]} if first in in_place else set())
        assert all(ordered.before[writer[second]] >> u & 1 for u in before)
    for port in program.outputs:
        assert program.offset(port.value) % 64 == 0
        assert program.offset(port.value) + port.type.nbytes <= program.memory.nbytes


class Careful(original.Careful):
    """Answers with the inputs that it was given, negated."""

    def __init__(self, outputs: int) -> None:
        self.outputs = outputs

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        return [-np.concatenate(inputs)] * self.outputs  # type: ignore[operator]


@needs_core
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=programs(), plain=st.sets(st.integers(0, 13), max_size=3))
def test_the_numbers_are_those_of_one_after_another(
    drawn: tuple[Program, list[int]], plain: set[int], add: ctypes.CDLL
) -> None:
    """Some kernels do not run on the team, also where the schedule has them on a stream."""
    program, delays = drawn
    slow = iter(delays)

    def kernel(number: int, region: Region) -> Kernel:
        if region.backend != "add":
            return View().load(b"", BuildOptions())
        delay = next(slow)
        return PlainAddKernel() if number in plain else AddKernel(add, delay)

    kernels = [kernel(*each) for each in enumerate(program.launches)]
    executor = Executor(program, kernels, {}, careful=Careful(len(program.outputs)))
    rng = np.random.default_rng(0)
    for count in range(6):
        team_of(program.threads).beware(10.0 if count % 2 else 0.0)
        values = {p.value: rng.integers(0, 9, 64).astype(np.float32) for p in program.inputs}
        if count > 3:
            values[program.inputs[-1].value][rng.integers(64)] = np.nan
        inputs = [values[p.value] for p in program.inputs]
        for region in program.regions:
            read = [values[v] for v in region.inputs]
            if region.backend == "add":
                results = [np.asarray(1 + sum(read), np.float32)]
            else:
                results = np.split(np.concatenate(read), len(region.outputs))
            values.update(zip(region.outputs, results, strict=True))
        executor._arena[:] = 0xA5
        found = executor.run(inputs)
        scanned = {value for region in program.launches for value in region.scans}
        if any(np.isnan(values[value]).any() for value in scanned):
            for array in found:
                np.testing.assert_array_equal(array, -np.concatenate(inputs))
            continue
        for port, array in zip(program.outputs, found, strict=True):
            np.testing.assert_array_equal(array, values[port.value])
    team_of(program.threads).beware(0.0)
    noted = NotedRuns(executor, inputs)
    run_in_turns(noted, 0.0)
    times = noted.launches_us()
    assert len(times) == len(program.launches)
    assert min(times) > 0


@needs_core
def test_a_failure_on_one_stream_ends_the_run_and_the_next_one_is_whole(add: ctypes.CDLL) -> None:
    """Launch 0 fails; launch 2, on another thread, waits for it."""
    on = [{"threads": 1, "stream": s} for s in (0, 1, 1)]
    reads = [(0,), (0,), (1, 2)]
    regions = [Region("add", ("add",), (v,), (), reads[v], (v + 1,), **on[v]) for v in range(3)]
    program = make_program(regions, [Port("x", 0, KIND)], [Port("y", 3, KIND)], dict.fromkeys(range(4), KIND), 2)
    assert program.ordered.events == ((0, 2),)
    kernels = [AddKernel(add, 0) for _ in range(3)]
    whole = Executor(program, kernels, {})
    kernels[0] = AddKernel(add, -1)
    broken = Executor(program, kernels, {})
    x = np.ones(64, np.float32)
    for count in range(20):
        team_of(2).beware(10.0 if count % 2 else 0.0)
        with pytest.raises(TaskError, match="status 7"):
            broken.run([x])
        np.testing.assert_array_equal(whole.run([x])[0], np.full(64, 5, np.float32))
    team_of(2).beware(0.0)


def test_when_launches_could_begin() -> None:
    on = [
        {"threads": 1, "stream": 0},
        {"threads": 1, "stream": 1},
        {"threads": 1, "stream": 1},
        {"threads": 2},
    ]
    reads = [(0,), (0,), (1, 2), (3,)]
    regions = [Region("add", ("add",), (v,), (), reads[v], (v + 1,), **on[v]) for v in range(4)]
    program = make_program(regions, [Port("x", 0, KIND)], [Port("y", 4, KIND)], dict.fromkeys(range(5), KIND), 2)
    assert begins(program.ordered, [50, 20, 70, 90], 10) == [10, 10, 50, 70]
