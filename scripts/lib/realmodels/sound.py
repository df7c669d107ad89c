"""Generated sound in the windows that voice-activity detectors take: each begins with the end of the one before."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def sounds(rate: int) -> Floats:
    """Silence, a tone, something like syllables, noise, a chirp and a click: half a second of each."""
    n = rate // 2
    t = np.arange(n) / rate
    rng = np.random.default_rng(0)
    pitch = 2 * np.pi * np.cumsum(120 + 20 * np.sin(2 * np.pi * 3 * t)) / rate
    voice = sum(np.sin(k * pitch) * np.exp(-(((120 * k - 700) / 600) ** 2)) for k in range(1, 25))
    click = np.zeros(n)
    click[n // 3] = 1.0
    parts = [
        np.zeros(n),
        0.3 * np.sin(2 * np.pi * 440 * t),
        0.2 * voice * np.clip(np.sin(2 * np.pi * 4 * t), 0, None),
        0.1 * rng.standard_normal(n),
        0.5 * np.sin(2 * np.pi * (100 * t + (rate / 4 - 100) * t**2)),
        click,
        0.15 * voice + 0.02 * rng.standard_normal(n),
    ]
    return np.concatenate(parts).astype(np.float32)


def windows(rate: int) -> Floats:
    """The windows of ``sounds``."""
    return windows_of(sounds(rate), rate)


def windows_of(sound: Floats, rate: int) -> Floats:
    """(windows, 576) at 16 kHz, (windows, 288) at 8 kHz: 32 ms each, and 4 ms of the one before."""
    length, before = rate * 32 // 1000, rate * 4 // 1000
    padded = np.concatenate([np.zeros(before, np.float32), sound])
    count = len(sound) // length
    return np.stack([padded[i * length : i * length + before + length] for i in range(count)])
