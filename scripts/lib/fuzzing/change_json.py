"""One change to a JSON value: another number or type, a missing field, swapped values, or a shorter list."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

STRANGE: tuple[Any, ...] = (
    0, 1, -1, 2, 7, 16, 63, 64, 65, 1000, 65536, 2**31 - 1, 2**31, -(2**31), 2**32, 2**40, 2**62, 2**63, -(2**63),
    10**30, 1.5, -0.5, 1e308, float("nan"), float("inf"), True, False, None, "", "x", "plain", "\x1b[31mred\x07",
    "\ud800", "</script><script>alert(1)</script>", [], {}, [1], {"a": 1}, "float32", "float64", "object", "int8",
)  # fmt: skip


def change(
    value: Any, rng: random.Random, *, spare: Callable[[tuple[Any, ...]], bool] = lambda _: False
) -> tuple[Any, str]:
    """A changed copy, and a description of the change. Paths for which ``spare`` is true are not changed."""
    found = copy.deepcopy(value)
    places = [path for path in _paths(found) if not spare(path)]
    if not places:
        return found, "nothing"
    path = rng.choice(places)
    parent = found
    for key in path[:-1]:
        parent = parent[key]
    key, old = path[-1], parent[path[-1]]
    kinds = ["replace"]
    if isinstance(old, (int, float)) and not isinstance(old, bool):
        kinds += ["number"] * 6
    if isinstance(old, (list, dict)) and old:
        kinds += ["drop", "drop", "repeat"]
    if isinstance(parent, list) and len(parent) > 1:
        kinds += ["swap", "swap"]
    if isinstance(parent, dict) and len(parent) > 1:
        kinds += ["swap", "delete", "rename"]
    kind = rng.choice(kinds)
    if kind == "number":
        parent[key] = rng.choice([old + 1, old - 1, old * 2, old // 2, -old, old * 1000, old + 16, old * 2**33])
    elif kind == "replace":
        parent[key] = copy.deepcopy(rng.choice(STRANGE))
    elif kind == "drop":
        if isinstance(old, list):
            del old[rng.randrange(len(old))]
        else:
            del old[rng.choice(list(old))]
    elif kind == "repeat":
        if isinstance(old, list):
            old.insert(rng.randrange(len(old) + 1), copy.deepcopy(rng.choice(old)))
        else:
            old["extra"] = copy.deepcopy(rng.choice(list(old.values())))
    elif kind == "swap":
        others = [k for k in (range(len(parent)) if isinstance(parent, list) else parent) if k != key]
        other = rng.choice(others)
        parent[key], parent[other] = parent[other], parent[key]
    elif kind == "delete":
        del parent[key]
    elif kind == "rename":
        parent[f"{key}x"] = parent.pop(key)
    text = f"{'.'.join(map(str, path))}: {kind} {_short(old)}"
    if kind in ("number", "replace"):
        text += f" -> {_short(parent[key])}"
    return found, text


def _paths(value: Any, base: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in it, also of containers."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found: list[tuple[Any, ...]] = []
    for key, each in inside:
        found += [(*base, key), *_paths(each, (*base, key))]
    return found


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def flip(data: bytes, rng: random.Random) -> bytes:
    """The bytes with some other bits, or other bytes."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 4, 32])):
        at = rng.randrange(len(changed))
        changed[at] = changed[at] ^ 1 << rng.randrange(8) if rng.random() < 0.7 else rng.choice(b"\0\xff\x7f\x80")
    return bytes(changed)
