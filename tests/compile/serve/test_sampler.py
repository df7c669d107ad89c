"""Sampling against its definition, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.errors import UsageError
from collage.serve.sampling import Chooser, Logprobs, Sampler, Sampling, choose_all, log_probabilities

LOGITS = st.lists(st.integers(-40, 40), min_size=2, max_size=30).map(lambda found: np.array(found, np.float32) / 8)


def chosen(
    samplers: list[Sampler], logits: np.ndarray[Any, Any], threads: int = 1
) -> list[tuple[int, Logprobs | None] | None]:
    return choose_all(Chooser(logits.shape[1], threads), samplers, logits)


def draws(sampling: Sampling, logits: np.ndarray[Any, Any], count: int, prompt: tuple[int, ...] = ()) -> list[int]:
    """The answer of a model whose logits are always the same."""
    sampler, chooser = Sampler(sampling, prompt), Chooser(len(logits))
    return [each[0] for _ in range(count) for each in choose_all(chooser, [sampler], logits[None]) if each is not None]


def allowed(logits: np.ndarray[Any, Any], sampling: Sampling) -> set[int]:
    """The tokens that may be drawn, from the definitions of top-k and top-p. The sums have some slack."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    order = order[: sampling.top_k or None]
    scaled = (logits[order].astype(np.float64) - float(logits.max())) / sampling.temperature
    weights = np.exp(scaled).tolist()
    found, mass, total = set(), 0.0, sum(weights)
    for i, weight in zip(order, weights, strict=True):
        if mass > (sampling.top_p + 1e-6) * total:
            break
        if weight >= sampling.min_p * (1 - 1e-6):
            found.add(i)
        mass += weight
    return found


@settings(max_examples=100, deadline=None)
@given(LOGITS, st.floats(0.1, 3), st.integers(0, 10), st.floats(0.05, 1), st.floats(0, 0.9), st.integers(0, 99))
def test_draws_are_from_the_likeliest_tokens(
    logits: np.ndarray[Any, Any], temperature: float, top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    drawn = draws(sampling, logits, 20)
    assert set(drawn) <= allowed(logits, sampling)
    assert drawn == draws(sampling, logits, 20)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.3),
        Sampling(top_k=1),
        Sampling(top_k=4999),
        Sampling(top_p=0.9),
        Sampling(top_k=300, top_p=0.5),
        Sampling(min_p=0.2),
        Sampling(top_k=40, top_p=0.95, min_p=0.05, temperature=2.0),
    ],
    ids=repr,
)
@pytest.mark.parametrize("spread", [0.0, 1.0, 60.0])
def test_draws_of_many_tokens(sampling: Sampling, spread: float) -> None:
    """Every token is as often drawn as its probability says, which groups of tokens tell where single ones are rare."""
    count, parts = 5000, 8
    logits = (np.random.default_rng(3).standard_normal(count) * spread).astype(np.float32)
    kept = sorted(allowed(logits, sampling))
    weights = np.exp((logits[kept].astype(np.float64) - logits.max()) / sampling.temperature)
    expected = np.array([each.sum() for each in np.array_split(weights / weights.sum(), parts)])
    samplers = [Sampler(Sampling(**{**vars(sampling), "seed": seed})) for seed in range(1000)]
    found = chosen(samplers, np.broadcast_to(logits, (len(samplers), count)).copy(), threads=2)
    tokens = [each[0] for each in found if each is not None]
    assert set(tokens) <= set(kept)
    places = np.searchsorted(kept, tokens)
    bounds = np.cumsum([len(each) for each in np.array_split(np.arange(len(kept)), parts)])
    counts = np.bincount(np.searchsorted(bounds, places, side="right"), minlength=parts)
    assert np.abs(counts / len(tokens) - expected).max() < 0.06


def test_of_equal_tokens_the_first_ones_are_kept() -> None:
    logits = np.zeros(2000, np.float32)
    drawn = set(draws(Sampling(seed=1, top_p=0.9), logits, 3000))
    assert max(drawn) < 1800
    assert len(drawn) > 1200
    assert set(draws(Sampling(seed=1, top_k=5), logits, 200)) == set(range(5))
    logits[100:200] = 1.0
    assert set(draws(Sampling(seed=1, top_k=3), logits, 100)) == {100, 101, 102}
    assert draws(Sampling(temperature=0), np.array([-0.0, 0.0, 0.0], np.float32), 1) == [0]


def test_extremes() -> None:
    logits = np.array([1.0, 3.0, -np.inf, 2.0], np.float32)
    assert draws(Sampling(temperature=1e-300), logits, 1) == [1]
    assert draws(Sampling(top_p=0.0), logits, 5) == [1] * 5
    assert draws(Sampling(top_k=1), logits, 5) == [1] * 5
    assert draws(Sampling(min_p=1.0), logits, 5) == [1] * 5
    assert draws(Sampling(seed=1, top_k=2**64), logits, 50) == draws(Sampling(seed=1), logits, 50)
    assert 2 not in draws(Sampling(seed=1, temperature=100), logits, 200)
    assert 2 not in draws(Sampling(seed=1, temperature=100, top_k=4, top_p=1), logits, 200)
    minus = -np.inf
    for bad in ([1.0, np.nan], [np.nan, 1.0], [1.0, -np.nan], [minus, minus], [np.inf, 1.0], [minus, np.nan]):
        for sampling in (Sampling(), Sampling(temperature=0)):
            assert chosen([Sampler(sampling)], np.array([bad], np.float32)) == [None]


def test_rows_are_chosen_on_their_own() -> None:
    """Rows with and without draws, penalties and log probabilities, on more threads than some iterations have rows."""
    rows = np.random.default_rng(0).standard_normal((9, 1000)).astype(np.float32)
    rows[4, 7] = np.nan
    asked = [
        Sampling(temperature=0),
        Sampling(seed=3),
        Sampling(temperature=0, logit_bias=((5, 99.0),), logprobs=2),
        Sampling(seed=4, top_p=0.5),
        Sampling(),
        Sampling(temperature=0, logprobs=0),
        Sampling(seed=5, top_k=3),
        Sampling(temperature=0, logit_bias=((6, -99.0),)),
        Sampling(temperature=0),
    ]
    together = chosen([Sampler(each) for each in asked], rows, threads=2)
    alone = [chosen([Sampler(each)], rows[i : i + 1], threads=2)[0] for i, each in enumerate(asked)]
    assert together == alone
    assert together[4] is None
    assert [together[i] for i in (0, 8)] == [(int(rows[i].argmax()), None) for i in (0, 8)]
    assert together[2] == (5, log_probabilities(rows[2], 5, 2))


def test_biases_and_penalties() -> None:
    logits = np.array([1.0, 3.0, 2.5], np.float32)
    assert draws(Sampling(temperature=0, logit_bias=((0, 5.0),)), logits, 1) == [0]
    assert draws(Sampling(temperature=0, frequency_penalty=0.4), logits, 5) == [1, 1, 2, 1, 2]
    assert draws(Sampling(temperature=0, presence_penalty=1.0), logits, 4) == [1, 2, 1, 1]
    assert draws(Sampling(temperature=0, repetition_penalty=1.5), logits, 4) == [1, 2, 1, 1]
    assert draws(Sampling(temperature=0, repetition_penalty=1.5), logits, 2, prompt=(1,)) == [2, 1]
    assert draws(Sampling(temperature=0, repetition_penalty=2.0), logits - 4, 3) == [1, 2, 1]
    assert draws(Sampling(temperature=0, repetition_penalty=4.0), -logits, 3, prompt=(0, 2)) == [1, 0, 0]


def test_end_tokens_wait_for_the_first_tokens() -> None:
    logits = np.array([1.0, 3.0, 2.5], np.float32)
    chooser, sampler = Chooser(3), Sampler(Sampling(temperature=0, min_tokens=2), ends=(1, 700, -1, -9))
    found = [choose_all(chooser, [sampler], logits[None])[0] for _ in range(4)]
    assert found == [(2, None), (2, None), (1, None), (1, None)]


@settings(max_examples=50, deadline=None)
@given(LOGITS, st.integers(0, 20))
def test_log_probabilities(logits: np.ndarray[Any, Any], count: int) -> None:
    expected = logits - np.log(np.sum(np.exp(logits.astype(np.float64))))
    found = log_probabilities(logits, 1, count)
    assert found.chosen == pytest.approx(float(expected[1]), abs=1e-5)
    assert len(found.top) == min(count, len(logits))
    best = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:count]
    assert [token for token, _ in found.top] == best
    assert np.allclose([value for _, value in found.top], expected[best], atol=1e-5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0},
        {"temperature": math.nan},
        {"top_p": 1.1},
        {"top_k": -1},
        {"logprobs": 21},
        {"repetition_penalty": 0.0},
        {"min_tokens": 17},
        {"stop": ("",)},
        {"logit_bias": ((1, math.inf),)},
        {"presence_penalty": math.nan},
    ],
    ids=str,
)
def test_wrong_parameters(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Sampling(**wrong)


@pytest.mark.parametrize("most", [2**41, 10**400, 10**4299])
def test_numbers_of_tokens_that_are_no_floats_are_refused(most: int) -> None:
    with pytest.raises(UsageError, match=r"^max_tokens is \d+; it must be from 1 to "):
        Sampling(max_tokens=most, min_tokens=most)
