"""The memory plan: values that live together never overlap, and the arena is close to the lower bound."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from collage.graph.dataflow import TensorType
from collage.schedule.memory import ALIGNMENT, Lifetime, lifetimes, plan_memory
from collage.schedule.program import Port, make_program
from collage.schedule.read_program import read_program
from collage.schedule.region import Region
from collage.schedule.sharing import BufferView


@st.composite
def lives(draw: st.DrawFn) -> dict[int, Lifetime]:
    count = draw(st.integers(1, 30))
    found = {}
    for value in range(count):
        first = draw(st.integers(0, 20))
        found[value] = Lifetime(draw(st.integers(0, 500)), first, draw(st.integers(first, 20)))
    return found


@given(lives())
def test_values_alive_together_do_not_overlap(given_lives: dict[int, Lifetime]) -> None:
    plan = plan_memory(given_lives)
    for a, life_a in given_lives.items():
        assert plan.offsets[a] % ALIGNMENT == 0
        assert plan.offsets[a] + life_a.nbytes <= plan.nbytes
        for b, life_b in given_lives.items():
            if a < b and life_a.first <= life_b.last and life_b.first <= life_a.last:
                apart = (
                    plan.offsets[a] + max(life_a.nbytes, 1) <= plan.offsets[b]
                    or plan.offsets[b] + max(life_b.nbytes, 1) <= plan.offsets[a]
                )
                assert apart, (a, b)
    assert plan.lower_bound <= plan.nbytes <= sum(-(-max(x.nbytes, 1) // 64) * 64 for x in given_lives.values())


def test_a_chain_needs_two_buffers() -> None:
    steps = [([i], [i + 1]) for i in range(10)]
    plan = plan_memory(lifetimes(steps, dict.fromkeys(range(11), 1024), [0], [10]))
    assert plan.nbytes == plan.lower_bound == 2 * 1024


def test_outputs_live_to_the_end_and_unread_values_for_their_step() -> None:
    found = lifetimes([([0], [1, 2]), ([1], [3])], dict.fromkeys(range(4), 64), [0], [1])
    assert found[1].last == 2
    assert (found[2].first, found[2].last) == (0, 0)


def region(backend: str, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Region:
    return Region(backend, ("op",), (0,), ("node",), inputs, outputs)


def test_views_share_the_buffer_of_what_they_view() -> None:
    tensor, flat = TensorType((2, 8), "float32"), TensorType((16,), "float32")
    types = {0: tensor, 1: tensor, 2: flat, 3: flat, 4: flat}
    regions = [
        region("a", (0,), (1,)),
        region("view", (1,), (2,)),
        region("view", (2,), (3,)),
        region("b", (3,), (4,)),
    ]
    program = make_program(regions, [Port("x", 0, tensor)], [Port("y", 4, flat)], types)
    assert program.aliases == {2: BufferView(1, 0), 3: BufferView(1, 0)}
    assert [r.backend for r in program.launches] == ["a", "b"]
    assert 3 not in program.memory.offsets
    assert read_program(program.to_json()) == program
