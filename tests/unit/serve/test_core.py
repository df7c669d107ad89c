"""The engine's state step by step, where threads cannot hide an order."""

from __future__ import annotations

from itertools import count

from collage.serve.blocks import block_key, root_key
from collage.serve.core import Core
from collage.serve.options import EngineOptions
from collage.serve.request import Event, Finish, Request
from collage.serve.sampling import Sampling
from tests.helpers.serve.simulation import NullRunner, parts

GREEDY = Sampling(max_tokens=4, temperature=0)


def step(core: Core) -> tuple[list[tuple[int, int]], list[Event]]:
    """One iteration: the tokens of each request in it, and its events."""
    plan = core.plan(0.0)
    steps, events = core.begin(plan)
    events += core.finish(plan, core.run(steps))
    core.check()
    return parts(plan), events


def test_answers_to_one_prompt_wait_for_its_leader() -> None:
    core = Core(NullRunner(), EngineOptions())
    core.add(Request(0, (0,) * 10, GREEDY), 0.0)
    core.add(Request(1, (0,) * 10, GREEDY, leader=0), 0.0)
    core.add(Request(2, (1,) * 6, GREEDY), 0.0)
    assert step(core)[0] == [(0, 10), (2, 6)]  # the second is passed by
    assert step(core)[0] == [(0, 1), (2, 1), (1, 2)]  # and finds two full blocks of four
    assert core.stats().cached_tokens == 8


def test_a_leader_that_leaves_holds_nobody_back() -> None:
    core = Core(NullRunner(), EngineOptions())
    core.add(Request(0, (0,) * 10, GREEDY), 0.0)
    core.add(Request(1, (0,) * 10, GREEDY, leader=0), 0.0)
    assert [each.finish for each in core.cancel(0)] == [Finish.CANCELLED]
    assert step(core)[0] == [(1, 10)]


def test_a_prompt_is_let_go_between_its_chunks() -> None:
    core = Core(NullRunner(max_tokens=16), EngineOptions())
    core.add(Request(0, (0,) * 40, GREEDY), 0.0)
    plan = core.plan(0.0)
    steps, _ = core.begin(plan)
    assert core.cancel(0) == []  # in flight
    events = core.finish(plan, core.run(steps))
    assert [(each.id, each.finish) for each in events] == [(0, Finish.CANCELLED)]
    assert not core.busy
    assert core.blocks.used == 0


def test_blocks_that_are_kept_are_not_counted_twice() -> None:
    """A prompt that is in the cache needs its kept blocks, too, so they are not free for the rest of it."""
    core = Core(NullRunner(block_count=5), EngineOptions())
    core.add(Request(0, (0,) * 13, Sampling(max_tokens=1, temperature=0)), 0.0)
    step(core)
    core.add(Request(1, (1,) * 5, Sampling(max_tokens=3, temperature=0)), 0.0)  # 2 blocks; 3 are left, all kept
    core.add(Request(2, (0,) * 13, Sampling(max_tokens=3, temperature=0)), 0.0)  # these 3 and one more
    assert step(core)[0] == [(1, 5)]
    while core.busy:
        step(core)
    assert core.stats().cached_tokens == 12


def test_only_computed_blocks_are_found() -> None:
    core = Core(NullRunner(max_tokens=16), EngineOptions())
    core.add(Request(0, (0,) * 40, GREEDY), 0.0)
    step(core)
    keys = core._running[0].keys
    core._running[0].extend_keys(4, 9)
    assert len(core.blocks.lookup(keys)[0]) == 4


def test_a_salt_that_is_the_key_of_a_prefix_opens_no_way_behind_it() -> None:
    """Else whoever knows a prompt could put blocks of other tokens behind its first ones."""
    for number in count():
        prefix = (number, 0, 0, 0)
        try:
            salt = block_key(root_key(""), prefix).decode()
            break
        except UnicodeDecodeError:  # few keys are texts
            continue
    core = Core(NullRunner(), EngineOptions())
    one = Sampling(max_tokens=1, temperature=0)
    core.add(Request(0, (*prefix, 0), one), 0.0)
    step(core)
    core.add(Request(1, (1, 1, 1, 1, 0), one, cache_salt=salt), 0.0)
    step(core)
    core.add(Request(2, (*prefix, 1, 1, 1, 1, 0), one), 0.0)
    step(core)
    assert core.stats().cached_tokens == len(prefix)


def test_expired_requests_leave_with_their_blocks() -> None:
    core = Core(NullRunner(max_tokens=16), EngineOptions())
    core.add(Request(0, (0,) * 40, GREEDY, timeout_s=1.0), 0.0)
    step(core)
    plan = core.plan(2.0)
    assert plan.sequences == ()
    assert [each.id for each in plan.expired] == [0]
    _, events = core.begin(plan)
    assert [each.finish for each in events] == [Finish.EXPIRED]
    assert core.blocks.used == 0
    assert not core.busy


def test_deadlines_of_requests_that_have_ended_do_not_pile_up() -> None:
    """Also where a request with an earlier one is always there."""
    core = Core(NullRunner(), EngineOptions())
    core.add(Request(0, (1,), Sampling(), timeout_s=5.0), 0.0)
    for id in range(1, 1000):
        core.add(Request(id, (1,), Sampling(), timeout_s=86400.0), 0.0)
        core.cancel(id)
    assert core.next_deadline_s == 5.0
    assert len(core._deadlines) < 100


def test_blocks_of_an_expired_request_that_hold_the_prompt_of_another_are_not_counted_twice() -> None:
    core = Core(NullRunner(block_count=6), EngineOptions())
    core.add(Request(0, (0,) * 13, GREEDY, timeout_s=1.0), 0.0)  # 4 blocks
    step(core)
    core.add(Request(1, (0,) * 13, Sampling(max_tokens=12, temperature=0)), 0.0)  # 3 of these and 3 more
    core.add(Request(2, (1,) * 9, GREEDY), 0.0)  # 3 blocks
    plan = core.plan(2.0)
    assert [each.id for each in plan.expired] == [0]
    core.begin(plan)
    core.check()


def test_a_prompt_alone_is_not_cut_for_a_bucket() -> None:
    """13 tokens cost 36 ms at once. 12 of them cost 32 ms, but the last one would cost another iteration of 21 ms."""
    core = Core(NullRunner(), EngineOptions())
    core.add(Request(0, (0,) * 13, GREEDY), 0.0)
    assert step(core)[0] == [(0, 13)]


def test_a_prompt_beside_streams_is_cut_for_a_bucket() -> None:
    """The last token fits the next iteration of the nine streams, which is one of 12 tokens anyway."""
    core = Core(NullRunner(block_count=200), EngineOptions())
    for i in range(9):
        core.add(Request(i, (0,), GREEDY), 0.0)
    step(core)
    core.add(Request(9, (0,) * 24, GREEDY), 0.0)
    assert step(core)[0][-1] == (9, 23)
    assert step(core)[0][-1] == (9, 1)
