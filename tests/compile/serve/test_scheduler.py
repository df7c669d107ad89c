"""The policies in a simulation: nobody starves, nothing is used twice, and streams keep their time between tokens."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from collage.errors import InputError, UsageError
from collage.serve.chunked import plan_chunked
from collage.serve.core import Core, split_steps
from collage.serve.decoder.costs import measured_ms
from collage.serve.options import EngineOptions
from collage.serve.orca import select
from collage.serve.plan import BucketCosts, Limits, RequestPool, Sequence, rewarding_streams
from collage.serve.request import Finish, Request, check_request
from collage.serve.runner import Slice
from collage.serve.sampling import Sampling
from tests.helpers.serve.simulation import Job, NullRunner, Simulation

PROMPTS = st.one_of(
    st.integers(1, 60).map(lambda n: (0,) * n),  # many begin alike
    st.lists(st.integers(0, 2), min_size=1, max_size=60).map(tuple),
)
JOBS = st.lists(
    st.builds(
        Job,
        st.floats(0, 3),
        PROMPTS,
        st.integers(1, 40),
        st.integers(-2, 2),
        st.one_of(st.none(), st.floats(0, 5)),
        st.one_of(st.none(), st.floats(0.01, 5)),
    ),
    min_size=1,
    max_size=25,
)
OPTIONS = st.one_of(
    st.builds(EngineOptions, policy=st.just("orca"), max_running=st.integers(1, 8)),
    st.builds(
        EngineOptions,
        max_running=st.integers(1, 12),
        itl_target_ms=st.one_of(st.none(), st.floats(1, 200)),
    ),
)


@settings(max_examples=150, deadline=None)
@given(JOBS, OPTIONS, st.integers(1, 3), st.integers(25, 60))
def test_everything_ends_and_nothing_leaks(jobs: list[Job], options: EngineOptions, workers: int, blocks: int) -> None:
    """The simulation itself checks blocks and plans at each iteration."""
    simulation = Simulation(jobs, options, NullRunner(workers=workers, block_count=blocks))
    simulation.run()
    for job, record in zip(jobs, simulation.records, strict=True):
        if record.finish is Finish.LENGTH:
            assert record.tokens == job.max_tokens
        elif record.finish is Finish.CANCELLED:
            assert job.cancel_s is not None
        else:
            assert record.finish is Finish.EXPIRED
            assert job.timeout_s is not None


@settings(max_examples=100, deadline=None)
@given(JOBS, st.integers(1, 8), st.integers(1, 3), st.integers(25, 60))
def test_orca_is_first_come_first_served_at_the_iteration(
    jobs: list[Job], max_bs: int, workers: int, blocks: int
) -> None:
    """An earlier request has run at least as many iterations as a later one, among those that are still there."""
    jobs = sorted((replace(each, cancel_s=None, timeout_s=None) for each in jobs), key=lambda each: each.at_s)
    simulation = Simulation(
        jobs,
        EngineOptions(policy="orca", max_running=max_bs),
        NullRunner(workers=workers, block_count=blocks),
    )
    simulation.run()
    ran = [0] * len(jobs)
    whole = [each.max_tokens for each in jobs]
    for plan in simulation.iterations:
        assert len(plan.sequences) <= max_bs
        for each in plan.sequences:
            ran[each.id] += 1
        left = [n for n, all_of in zip(ran, whole, strict=True) if n < all_of]
        if workers == 1:
            assert left == sorted(left, reverse=True)
    assert ran == whole


def test_orca_lets_nobody_overtake() -> None:
    """A request that cannot reserve its slots ends the batch, though a later one would fit (line 25)."""
    running, large, small = (Sequence(i, [0] * 4, 4, 10, i) for i in range(3))
    pool = [(small, True, 2), (large, True, 9), (running, False, 8)]
    assert select(pool, 8, 4, 16) == ([running], 8)
    assert select(pool, 0, 4, 16) == ([running, large, small], 11)
    assert select(pool, 0, 2, 16) == ([running, large], 9)
    running.in_flight = True
    assert select(pool, 8, 4, 16) == ([], 8)


def test_orca_runs_batches_of_different_requests_at_a_time() -> None:
    """Three workers and a batch of two: AB, CD and EF are in flight, as in figure 8a."""
    jobs = [Job(0, (0,) * 4, 5) for _ in range(6)]
    simulation = Simulation(jobs, EngineOptions(policy="orca", max_running=2), NullRunner(workers=3))
    simulation.run()
    batches = [[each.id for each in plan.sequences] for plan in simulation.iterations]
    assert batches[:6] == [[0, 1], [2, 3], [4, 5]] * 2


def test_what_never_fits_is_refused() -> None:
    runner = NullRunner(block_count=4)
    fits = Request(0, (0,) * 8, Sampling(max_tokens=8))
    check_request(fits, runner)
    with pytest.raises(InputError, match="room for 16"):
        check_request(replace(fits, sampling=Sampling(max_tokens=9)), runner)
    with pytest.raises(InputError, match="this model's most is 128"):
        check_request(replace(fits, sampling=Sampling(max_tokens=121)), runner)
    with pytest.raises(InputError, match="token 3; the vocabulary is 0 to 2"):
        check_request(replace(fits, prompt=(0, 3)), runner)
    with pytest.raises(InputError, match="empty"):
        check_request(replace(fits, prompt=()), runner)
    with pytest.raises(InputError, match="no token 7"):
        check_request(replace(fits, sampling=Sampling(stop_token_ids=(7,))), runner)


@pytest.mark.parametrize("target", [30.0, 45.0, 90.0])
def test_streams_keep_their_time_between_tokens(target: float) -> None:
    jobs = [Job(0, (0,) * 3, 60) for _ in range(4)] + [Job(0.3 * i, (1,) * 60, 2) for i in range(1, 6)]
    simulation = Simulation(jobs, EngineOptions(itl_target_ms=target), NullRunner(block_count=128))
    simulation.run()
    with_streams = [ms for streams, ms in simulation.iteration_ms if streams]
    assert max(with_streams) <= target
    gaps = [after - before for before, after in pairwise(simulation.records[0].times)]
    assert max(gaps) * 1e3 <= target + 1e-6


def test_without_a_target_prompts_are_small_beside_streams() -> None:
    """Four streams take 24 ms alone, and so 48 ms with a prompt: 24 tokens take 44, and 32 take 52."""
    jobs = [Job(0, (0,) * 3, 60) for _ in range(4)] + [Job(0.3, (1,) * 100, 2)]
    simulation = Simulation(jobs, EngineOptions(), NullRunner(block_count=128))
    simulation.run()
    with_prompt = [plan.tokens for plan in simulation.iterations if len(plan.sequences) == 5 and plan.tokens > 5]
    assert with_prompt == [24] * 5


def test_without_a_target_prompts_are_computed_at_once_where_many_wait() -> None:
    """Of 16 places four are a quarter: as long as so many have no token yet, an iteration has all 64 tokens."""
    streams = [Job(0, (0,) * 3, 60) for _ in range(8)]
    jobs = streams + [Job(0.3, (each % 3, each // 3, *(1,) * 54), 2) for each in range(4)]
    simulation = Simulation(jobs, EngineOptions(max_running=16), NullRunner(block_count=256))
    simulation.run()
    with_prompts = [plan.tokens for plan in simulation.iterations if any(count > 3 for count in plan.counts)]
    assert with_prompts[0] == 64  # a whole prompt, after which three are left
    assert set(with_prompts[1:-1]) <= {32, 48}
    assert len(with_prompts) > 5


@pytest.mark.parametrize(
    ("ms", "streams"),
    [
        ((25.0, 30.0, 45.0, 60.0), 32),  # arithmetic: a token of 64 streams takes as long as one of 32
        ((25.0, 30.0, 37.0, 46.0), 48),  # one of 48 takes a tenth longer than one of 64 at most
        ((25.0, 30.0, 33.0, 36.0), 64),  # reading the weights, which many share
    ],
)
def test_the_measured_times_say_how_many_streams_pay(ms: tuple[float, ...], streams: int) -> None:
    assert rewarding_streams(BucketCosts((16, 32, 48, 64, 256), (*ms, 240.0))) == streams
    assert rewarding_streams(BucketCosts((1, 8), (10.0, 20.0))) == 32  # of which an iteration has eight then
    assert rewarding_streams(BucketCosts((1, 8, 64), (10.0, 20.0, 60.0))) == 64  # 32 are padded to it

    class Timed(NullRunner):
        buckets = 16, 32, 48, 64

        def cost_ms(self, tokens: int) -> float:
            return ms[self.buckets.index(tokens)]

    assert Core(Timed(), EngineOptions()).max_running == streams
    assert Core(Timed(), EngineOptions(max_running=7)).max_running == 7


def test_neither_a_slow_while_nor_a_change_of_buckets_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps take as many seconds as they have slices, four times as many in a third of the measuring, and twice as many
    after others."""
    now = 0.0
    steps = 0
    last: object = None

    class Shared(NullRunner):
        def step(self, slices: Sequence[Slice]) -> NDArray[np.float32]:
            nonlocal now, steps, last
            steps += 1
            now += len(slices) * (4 if 14 <= steps < 28 else 1) * (1 if slices is last else 2)
            last = slices
            return super().step(slices)

    monkeypatch.setattr("collage.serve.decoder.costs.time.perf_counter", lambda: now)
    streams, chunks = measured_ms(Shared(block_tokens=32, block_count=128), (4, 64), 5)
    assert streams == {4: 4000, 64: 64000} and chunks == {4: 1000, 64: 1000}
    assert steps == 40


def test_prompts_go_on_though_the_target_cannot_be_kept() -> None:
    jobs = [Job(0, (0,) * 3, 60), Job(0.1, (1,) * 50, 2)]
    simulation = Simulation(jobs, EngineOptions(itl_target_ms=1.0, max_running=4), NullRunner())
    simulation.run()
    assert [each.finish for each in simulation.records] == [Finish.LENGTH] * 2


def test_a_bucket_that_pays_is_chosen() -> None:
    """48 tokens fit a bucket of 64 that is slow, so 32 are run: they are more tokens a millisecond."""
    limits = Limits(8, 4)
    runner = NullRunner(block_count=64)
    pool = Simulation([], EngineOptions(), runner).core
    pool.add(Request(0, (0,) * 48, Sampling(max_tokens=4)), 0.0)
    view = RequestPool([], pool._waiting, pool.blocks)
    slow = BucketCosts((1, 32, 64), (10.0, 20.0, 90.0))
    fast = BucketCosts((1, 32, 64), (10.0, 20.0, 25.0))
    assert plan_chunked(view, 0.0, slow, limits).tokens == 32
    assert plan_chunked(view, 0.0, fast, limits).tokens == 48


def test_priorities_are_served_first_and_do_not_starve_others() -> None:
    first = [Job(0, (0, 1), 4, priority=1), Job(0.001, (0, 2), 4, priority=0)]
    simulation = Simulation([Job(0, (1,), 3), *first], EngineOptions(max_running=1), NullRunner())
    simulation.run()
    assert simulation.records[2].times[0] < simulation.records[1].times[0]
    flood = [Job(0.1 * i, (0,), 8, priority=-1) for i in range(300)]  # more than can be served, all more urgent
    simulation = Simulation([Job(0, (1,), 3), *flood], EngineOptions(max_running=1), NullRunner())
    simulation.run()
    last = max(each.times[-1] for each in simulation.records)
    assert simulation.records[0].times[0] < 0.75 * last


def test_steps_of_too_many_tokens_are_split() -> None:
    slices = [Slice((1,) * 5, 0, (0, 1), True), Slice((2,) * 6, 3, (2, 3, 4), True)]
    steps = split_steps(slices, 4)
    assert [[len(each.token_ids) for each in step] for step in steps] == [[4], [1, 3], [3]]
    assert [[each.start for each in step] for step in steps] == [[0], [4, 3], [6]]
    assert [[each.wants_logits for each in step] for step in steps] == [[False], [True, False], [True]]
    assert split_steps(slices, 11) == [slices]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"policy": "fifo"}, "fifo. Valid: chunked, orca"),
        ({"max_running": 0}, "max_running"),
        ({"itl_target_ms": float("nan")}, "itl_target_ms"),
    ],
)
def test_wrong_options(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        EngineOptions(**wrong)  # type: ignore[arg-type]
