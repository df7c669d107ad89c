"""Sampling against its definition, and what is refused."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.errors import UsageError
from collage.serve.sampler import NotANumberError, Sampler, choose_all, log_probabilities
from collage.serve.sampling import Sampling

LOGITS = st.lists(st.integers(-40, 40), min_size=2, max_size=30).map(
    lambda found: np.array(found, np.float32) / 8
)


def allowed(logits: np.ndarray[Any, Any], sampling: Sampling) -> set[int]:
    """The tokens that may be drawn, from the definitions of top-k and top-p. The sums have some slack."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    order = order[: sampling.top_k or None]
    weights = [math.exp((logits[i] - max(logits)) / sampling.temperature) for i in order]
    found, mass = set(), 0.0
    for i, weight in zip(order, weights, strict=True):
        if mass > (sampling.top_p + 1e-6) * sum(weights):
            break
        found.add(i)
        mass += weight
    return found


@settings(max_examples=100, deadline=None)
@given(LOGITS, st.floats(0.1, 3), st.integers(0, 10), st.floats(0.05, 1), st.integers(0, 99))
def test_draws_are_from_the_likeliest_tokens(
    logits: np.ndarray[Any, Any], temperature: float, top_k: int, top_p: float, seed: int
) -> None:
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    sampler, twin = Sampler(sampling), Sampler(sampling)
    drawn = [sampler.choose(logits)[0] for _ in range(20)]
    assert set(drawn) <= allowed(logits, sampling)
    assert drawn == [twin.choose(logits)[0] for _ in range(20)]


def test_draws_have_the_probabilities_of_the_model() -> None:
    probabilities = np.array([0.5, 0.3, 0.15, 0.05])
    logits = np.log(probabilities).astype(np.float32)
    for sampling, expected in (
        (Sampling(seed=0), probabilities),
        (Sampling(seed=0, top_k=2), [0.625, 0.375, 0, 0]),
        (Sampling(seed=0, top_p=0.9), np.array([0.5, 0.3, 0.15, 0]) / 0.95),
        (Sampling(seed=0, temperature=0.5), probabilities**2 / np.sum(probabilities**2)),
        (Sampling(seed=0, top_k=3, top_p=0.8), [0.625, 0.375, 0, 0]),
    ):
        sampler = Sampler(sampling)
        counts = Counter(sampler.choose(logits)[0] for _ in range(4000))
        found = [counts[i] / 4000 for i in range(4)]
        assert np.allclose(found, expected, atol=0.035), (sampling, found)


def test_top_p_of_many_tokens() -> None:
    """All of 2,000 equal tokens are needed but the last 10 %, more than the first look takes."""
    sampler = Sampler(Sampling(seed=1, top_p=0.9))
    drawn = {sampler.choose(np.zeros(2000, np.float32))[0] for _ in range(3000)}
    assert max(drawn) <= 1800
    assert len(drawn) > 1200


def test_extremes() -> None:
    logits = np.array([1.0, 3.0, -np.inf, 2.0], np.float32)
    assert Sampler(Sampling(temperature=1e-300)).choose(logits)[0] == 1
    assert Sampler(Sampling(top_p=0.0)).choose(logits)[0] == 1
    assert Sampler(Sampling(top_k=1)).choose(logits)[0] == 1
    assert all(Sampler(Sampling(seed=i, temperature=100)).choose(logits)[0] != 2 for i in range(100))
    for bad in ([1.0, np.nan], [-np.inf, -np.inf], [np.inf, 1.0]):
        with pytest.raises(NotANumberError):
            Sampler(Sampling()).choose(np.array(bad, np.float32))
    assert choose_all([Sampler(Sampling(temperature=0))], np.array([[np.nan, 1]], np.float32)) == [None]


def test_biases_and_penalties() -> None:
    logits = np.array([1.0, 3.0, 2.5], np.float32)
    assert Sampler(Sampling(temperature=0, logit_bias=((0, 5.0),))).choose(logits)[0] == 0
    repeats = Sampler(Sampling(temperature=0, frequency_penalty=0.4))
    assert [repeats.choose(logits)[0] for _ in range(5)] == [1, 1, 2, 1, 2]
    once = Sampler(Sampling(temperature=0, presence_penalty=1.0))
    assert [once.choose(logits)[0] for _ in range(4)] == [1, 2, 1, 1]


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
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"top_p": 1.1},
        {"top_k": -1},
        {"logprobs": 21},
        {"seed": 2**64},
        {"stop": ("",)},
        {"stop": ("x",) * 65},
        {"logit_bias": ((1, math.inf),)},
        {"presence_penalty": math.nan},
    ],
    ids=str,
)
def test_wrong_parameters(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Sampling(**wrong)
