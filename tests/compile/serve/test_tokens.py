"""Answers are those of the model running alone, however requests are mixed, cut, cached or preempted."""

from __future__ import annotations

import random
import threading
import time
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.errors import CollageError, InputError
from collage.serve import Engine, EngineOptions, Sampling, Slice
from collage.serve.engine import BusyError
from collage.serve.reference import ReferenceConfig, ReferenceRunner
from collage.serve.request import Finish

CONFIG = ReferenceConfig(block_tokens=8, block_count=64, max_length=128, max_tokens=32)
GREEDY = Sampling(max_tokens=8, temperature=0)


@lru_cache(maxsize=4)
def runner(workers: int = 1, step_ms: float = 0.0) -> ReferenceRunner:
    found = ReferenceRunner(ReferenceConfig(**{**vars(CONFIG), "workers": workers, "step_ms": step_ms}))
    for tokens in (1, 2, 4, 8, 12, 16, 24, 32):
        found.cost_ms(tokens)  # measured before any engine has tokens in the cache
    return found


@lru_cache(maxsize=1)
def whole_runner() -> ReferenceRunner:
    """The same weights with one block for a whole sequence, and whole prompts in one iteration."""
    return ReferenceRunner(
        ReferenceConfig(**{**vars(CONFIG), "block_tokens": 128, "block_count": 1, "max_tokens": 128})
    )


@lru_cache(maxsize=1000)
def alone(prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
    """The greedy answer, computed anew from the whole sequence for each token."""
    tokens = list(prompt)
    for _ in range(count):
        logits = whole_runner().step([Slice(tuple(tokens), 0, (0,), True)])
        tokens.append(int(np.argmax(logits[0])))
    return tuple(tokens[len(prompt) :])


OPTIONS = st.one_of(
    st.builds(EngineOptions, policy=st.just("orca"), max_running=st.integers(1, 8)),
    st.builds(
        EngineOptions,
        max_running=st.integers(1, 12),
        itl_target_ms=st.one_of(st.none(), st.floats(0.1, 5)),
    ),
)


@settings(max_examples=15, deadline=None)
@given(OPTIONS, st.integers(1, 2), st.integers(0, 10**6))
def test_any_mix_gives_the_tokens_of_the_model_alone(options: EngineOptions, workers: int, seed: int) -> None:
    draw = random.Random(seed)
    beginnings = [tuple(draw.randrange(320) for _ in range(length)) for length in (1, 16, 40, 70)]
    with Engine(runner(workers), options) as engine:
        asked = []
        for _ in range(draw.randint(3, 14)):
            prompt = draw.choice(beginnings) + tuple(draw.randrange(320) for _ in range(draw.randint(0, 20)))
            count = draw.randint(1, 24)
            asked.append((prompt, count, engine.submit(prompt, Sampling(max_tokens=count, temperature=0))))
            if draw.random() < 0.2:
                time.sleep(0.003)
            if draw.random() < 0.2:
                engine.submit(draw.choice(beginnings), GREEDY).cancel()
        for prompt, count, stream in asked:
            assert stream.result().tokens == alone(prompt, count)
    engine.check()
    assert engine.stats().blocks_used == 0


def test_preempted_sequences_go_on_with_the_same_tokens() -> None:
    prompts = [tuple(range(i, i + 20)) for i in range(12)]  # no two have a block in common
    with Engine(runner(), EngineOptions()) as engine:
        sampled = Sampling(max_tokens=60, temperature=0)
        streams = [engine.submit(each, sampled) for each in prompts]
        for prompt, stream in zip(prompts, streams, strict=True):
            assert stream.result().tokens == alone(prompt, 60)
        assert engine.stats().preemptions > 0


def test_answers_to_one_prompt_share_its_blocks() -> None:
    prompt = tuple(range(50))
    with Engine(runner()) as engine:
        results = [each.result() for each in engine.submit_all(prompt, Sampling(seed=5), 4)]
        again = [each.result() for each in engine.submit_all(prompt, Sampling(seed=5), 4)]
        assert [each.tokens for each in results] == [each.tokens for each in again]
        assert len({each.tokens for each in results}) == 4
        assert [each.cached_tokens for each in results] == [0, 48, 48, 48]
        assert engine.submit(prompt, Sampling(seed=6)).result().tokens == results[1].tokens
    engine.check()


def test_seeded_draws_do_not_depend_on_what_else_runs() -> None:
    sampling = Sampling(max_tokens=20, seed=1, top_p=0.9, top_k=50)
    with Engine(runner()) as engine:
        quiet = engine.submit((1, 2, 3), sampling).result()
        others = [engine.submit((i,) * 30, Sampling(max_tokens=30)) for i in range(8)]
        busy = engine.submit((1, 2, 3), sampling).result()
        assert busy.tokens == quiet.tokens
        assert engine.submit((1, 2, 3), Sampling(max_tokens=20)).result().tokens != quiet.tokens
        for each in others:
            each.result()


def test_end_tokens_and_stop_tokens() -> None:
    answer = alone((1, 2, 3), 8)
    with Engine(runner()) as engine:
        stop = Sampling(max_tokens=8, temperature=0, stop_token_ids=(answer[3],))
        found = engine.submit((1, 2, 3), stop).result()
        assert found.finish is Finish.STOP
        assert found.tokens == answer[: answer.index(answer[3]) + 1]
        assert str(answer[3]) not in found.text.split()


def test_stop_texts_end_an_answer_and_free_its_blocks() -> None:
    answer = alone((1, 2, 3), 60)
    stop = f"{answer[4]} {answer[5]} "
    with Engine(runner()) as engine:
        sampling = Sampling(max_tokens=60, temperature=0, stop=("no such text", stop))
        found = engine.submit((1, 2, 3), sampling).result()
        assert found.finish is Finish.STOP
        assert found.text == "".join(f"{each} " for each in answer[:4])
    engine.check()
    assert found.tokens == answer[:6]
    assert engine.stats().generated_tokens == 6  # no iteration is run for it after that
    assert engine.stats().cancelled == 0


def test_cancelled_requests_free_their_blocks_within_an_iteration() -> None:
    with Engine(runner(step_ms=5.0)) as engine:
        streams = [engine.submit((i, 2, 3), Sampling(max_tokens=100)) for i in range(4)]
        next(iter(streams[0]))
        before = engine.stats().iterations
        for each in streams:
            each.cancel()
        assert streams[3].result().finish is Finish.CANCELLED
        assert engine.stats().iterations <= before + 2
        deadline = time.monotonic() + 5
        while engine.stats().blocks_used and time.monotonic() < deadline:
            time.sleep(0.005)
        assert engine.stats().blocks_used == 0
        engine.check()


def test_a_timeout_ends_a_request() -> None:
    with Engine(runner(step_ms=5.0)) as engine:
        found = engine.submit((1,), Sampling(max_tokens=100), timeout_s=0.05).result()
        assert found.finish is Finish.EXPIRED
        assert len(found.tokens) < 100


def test_a_failing_model_fails_its_batch_only() -> None:
    class Failing(ReferenceRunner):
        fails = False

        def step(self, slices):  # type: ignore[no-untyped-def]
            if self.fails:
                self.fails = False
                raise RuntimeError("no memory")
            return super().step(slices)

    failing = Failing(CONFIG)
    with Engine(failing) as engine:
        assert engine.submit((1, 2, 3), GREEDY).result().tokens == alone((1, 2, 3), 8)
        failing.fails = True
        with pytest.raises(CollageError, match="RuntimeError: no memory"):
            engine.submit((1, 2, 3), GREEDY).result()
        assert engine.submit((1, 2, 3), GREEDY).result().tokens == alone((1, 2, 3), 8)
    engine.check()


def test_logits_that_are_not_numbers_fail_a_request() -> None:
    broken = ReferenceRunner(ReferenceConfig(**{**vars(CONFIG), "nan_token": 7}))
    with Engine(broken) as engine:
        for temperature in (0.0, 1.0):
            with pytest.raises(CollageError, match="not numbers"):
                engine.submit((1, 7), Sampling(temperature=temperature)).result()
        assert engine.submit((1, 2, 3), GREEDY).result().tokens == alone((1, 2, 3), 8)


def test_too_many_requests_are_refused() -> None:
    options = EngineOptions(max_running=2, max_waiting=3)
    with Engine(runner(step_ms=5.0), options) as engine:
        streams = [engine.submit((1,), Sampling(max_tokens=50)) for _ in range(5)]
        with pytest.raises(BusyError):
            engine.submit((1,), GREEDY)
        for each in streams:
            each.cancel()
        for each in streams:
            each.result()
        engine.submit((1,), GREEDY).result()


def test_bad_requests() -> None:
    with Engine(runner()) as engine:
        with pytest.raises(InputError, match="no tokenizer"):
            engine.submit("hello")
        with pytest.raises(InputError, match="vocabulary"):
            engine.submit((320,))
        with pytest.raises(InputError, match="this model's most is 128"):
            engine.submit((1,) * 120, Sampling(max_tokens=9))
        assert engine.submit("1 2 3", GREEDY).result().tokens == alone((1, 2, 3), 8)
    with pytest.raises(CollageError, match="closed"):
        engine.submit((1,))


def test_closing_finishes_or_cancels() -> None:
    drained = Engine(runner(step_ms=5.0))
    stream = drained.submit((1, 2), GREEDY)
    drained.close()
    assert stream.result().finish is Finish.LENGTH
    ended = Engine(runner(step_ms=5.0))
    stream = ended.submit((1, 2), Sampling(max_tokens=100))
    ended.close(drain=False)
    assert stream.result().finish is Finish.CANCELLED


def test_requests_from_many_threads() -> None:
    prompts = [(i, i + 1, i + 2) for i in range(40)]
    found: dict[tuple[int, ...], tuple[int, ...]] = {}
    with Engine(runner(), EngineOptions(max_running=8)) as engine:

        def ask(prompt: tuple[int, ...]) -> None:
            found[prompt] = engine.submit(prompt, GREEDY).result().tokens

        threads = [threading.Thread(target=ask, args=(each,)) for each in prompts]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert found == {each: alone(each, 8) for each in prompts}
