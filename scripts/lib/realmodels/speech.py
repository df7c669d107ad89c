"""Synthetic speech and noise: syllables of vowels with formants, hisses between them, silence, hum and noise."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Samples = npt.NDArray[np.float64]

_VOWELS = ((730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480), (570, 840, 2410))
"""The first three formants of vowels in Hz (those of men's voices by Peterson and Barney)."""
_WIDTHS = (80.0, 110.0, 160.0)
"""Widths of the formants in Hz."""


def windows(rate: int, count: int, seed: int) -> Floats:
    """Windows of 32 ms, each after the last 4 ms of the one before: (count, 576) at 16 kHz."""
    length, before = rate * 32 // 1000, rate * 4 // 1000
    sound = np.concatenate([np.zeros(before, np.float32), _sound(rate, count * 0.032 + 0.1, seed)])
    return np.stack([sound[i * length : i * length + before + length] for i in range(count)])


def _sound(rate: int, seconds: float, seed: int) -> Floats:
    """Stretches of one to three seconds: a sentence, something else, and so on. Half of the sentences are noisy."""
    rng = np.random.default_rng([seed, rate])
    parts: list[Samples] = []
    total = int(seconds * rate)
    while sum(map(len, parts)) < total:
        length = int(rng.uniform(1.0, 3.0) * rate)
        noise = rng.choice([0.0, 0.01]) * rng.standard_normal(length)
        hum = rng.choice([0.0, 0.05]) * np.sin(100 * np.pi * np.arange(length) / rate)
        parts.append(noise + (hum if len(parts) % 2 else _sentence(rate, length, rng)))
    return np.concatenate(parts)[:total].astype(np.float32)


def _sentence(rate: int, length: int, rng: np.random.Generator) -> Samples:
    """Syllables of one speaker, whose pitch falls."""
    pitch, at, found = rng.uniform(95, 220), 0, np.zeros(length)
    while at < length:
        hiss = np.diff(rng.standard_normal(int(rng.uniform(0.03, 0.09) * rate) + 1))
        vowel = _vowel(rate, int(rng.uniform(0.09, 0.22) * rate), pitch, rng)
        syllable = np.concatenate([0.15 * hiss * np.hanning(len(hiss)), vowel])
        found[at : at + len(syllable)] += syllable[: length - at]
        at += len(syllable) + int(rng.uniform(0.0, 0.06) * rate)
        pitch *= rng.uniform(0.97, 1.01)
    return 0.3 * found / max(1e-6, float(np.abs(found).max()))


def _vowel(rate: int, length: int, pitch: float, rng: np.random.Generator) -> Samples:
    """Harmonics of a falling pitch, as loud as the formants that move from one vowel to another."""
    t = np.arange(length) / rate
    phase = 2 * np.pi * np.cumsum(pitch * (1 + 0.02 * np.sin(2 * np.pi * 5 * t))) / rate
    start, end = (np.array(_VOWELS[int(i)], float) for i in rng.integers(len(_VOWELS), size=2))
    formants = start[:, None] + (end - start)[:, None] * np.linspace(0, 1, length)
    found = np.zeros(length)
    for number in range(1, int(min(4000.0, rate / 2) / pitch)):
        gaps = [((number * pitch - f) / w) ** 2 for f, w in zip(formants, _WIDTHS, strict=True)]
        found += np.sin(number * phase) * sum(1 / (1 + gap) for gap in gaps) / np.sqrt(number)
    return found * np.sin(np.linspace(0, np.pi, length)) ** 0.5
