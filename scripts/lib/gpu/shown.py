"""What a run shows of the points that are asked of Collage on a GPU: numbers, goals, and whether they are met."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from scripts.lib.gpu.task import Task

__all__ = ["shown"]

Parts: TypeAlias = Mapping[str, Mapping[str, Any]]

_PAPER = ("dcgan", "bert_base", "resnext50_32x4d", "nasnet_a_mobile", "resnet50_3d")
"""The five workloads of Collage's paper."""
_STREAMED = ("nasnet_a_mobile", "inception_v3")
_MEAN, _LEAST, _STREAMS, _IDLE_US, _ANYWHERE = 1.10, 0.98, 1.3, 2.0, 1.05


def shown(tasks: Sequence[Task], parts: Parts) -> dict[str, Any]:
    """Each point with what was measured of it. ``met`` is None where nothing was."""
    on_gpu = [each for each in tasks if each.device == "cuda"]
    points = dict.fromkeys((each.precision, each.batch) for each in on_gpu)
    return {
        "right": _right(on_gpu, parts),
        "backends together": _together(on_gpu, parts),
        "against rivals": {
            f"{precision}, batch {batch}": _rivals(
                [each for each in on_gpu if (each.precision, each.batch) == (precision, batch)], parts
            )
            for precision, batch in points
        },
        "streams": _streams([each for each in on_gpu if each.workload in _STREAMED], parts),
        "idle": _idle(on_gpu, parts),
        "auto": {name: _auto(name, tasks, parts) for name in dict.fromkeys(_with_auto(tasks))},
    }


def _found(task: Task, parts: Parts, *names: str) -> Any:
    """What the network's own part has found by these names, one inside the other, or None."""
    return _at(parts.get(task.name, {}), *names)


def _at(found: Any, *names: str) -> Any:
    for name in names:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _all(results: Iterable[bool | None]) -> bool | None:
    """Whether all are true; None where there are none, or one is not known and none is false."""
    known = [*results]
    if False in known:
        return False
    return True if known and None not in known else None


def _right(tasks: Sequence[Task], parts: Parts) -> dict[str, Any]:
    errors = {each.name: _found(each, parts, "right", "error") for each in tasks}
    failed = {each.name: _found(each, parts, "right", "failed") for each in tasks}
    right = [False if failed[name] else None if error is None else True for name, error in errors.items()]
    return {"errors": errors, "failed": {k: v for k, v in failed.items() if v}, "met": _all(right)}


def _together(tasks: Sequence[Task], parts: Parts) -> dict[str, Any]:
    """The backends of each network: at least two of the paper's five have kernels of all three."""
    placed = {each.name: _found(each, parts, "compile", "backends") for each in tasks}
    wanted = {"tvm_cuda", "cublas", "cudnn"}
    known = [placed[each.name] for each in tasks if each.workload in _PAPER and placed[each.name]]
    count = sum(wanted <= {*each} for each in known)
    return {"launches": placed, "with all three": count, "met": None if not known else count >= 2}


def _rivals(tasks: Sequence[Task], parts: Parts) -> dict[str, Any]:
    """The best rival's time over Collage's for each network, their geometric mean, and the least.

    The goal is one of batch 1, against all rivals; ``without torch.compile`` names networks that it is missing for.
    """
    ratios, missing = {}, []
    for task in tasks:
        more = parts.get(f"{task.name} against torch.compile", {})
        steps = (
            _at(more, "times with torch.compile"),
            _at(more, "times"),
            _found(task, parts, "times"),
        )
        times = next((each for each in steps if _at(each, "best rival over collage")), None)
        if times is not None:
            ratios[task.workload] = times["best rival over collage"]
        if "torch.compile" not in (_at(times, "us") or {}):
            missing.append(task.workload)
    if not ratios:
        return {"ratios": {}, "met": None}
    mean, least = math.prod(ratios.values()) ** (1 / len(ratios)), min(ratios.values())
    met: bool | None = mean >= _MEAN and least >= _LEAST
    if (met and missing) or any(each.batch != 1 for each in tasks):
        met = None
    return {
        "ratios": ratios,
        "geometric mean": round(mean, 3),
        "least": least,
        "without torch.compile": missing,
        "met": met,
    }


def _streams(tasks: Sequence[Task], parts: Parts) -> dict[str, Any]:
    """Parallel streams against one: the speedup of each schedule, and the milliseconds that finding it took."""
    found = {}
    for task in tasks:
        speedup = _found(task, parts, "streams", "speedup")
        if speedup:
            found[task.name] = {
                "speedup": speedup,
                "opara over nimble": _quotient(speedup.get("opara"), speedup.get("nimble")),
                "scheduling ms": _found(task, parts, "streams", "scheduling ms"),
            }
    best = [max(each["speedup"].values()) for name, each in found.items() if name.startswith(_STREAMED[0])]
    return {"networks": found, "met": max(best) >= _STREAMS if best else None}


def _idle(tasks: Sequence[Task], parts: Parts) -> dict[str, Any]:
    us = {each.name: _found(each, parts, "idle", "mean idle us between kernels") for each in tasks}
    known = [each for each in us.values() if each is not None]
    return {"us between kernels": us, "met": sum(known) / len(known) < _IDLE_US if known else None}


def _with_auto(tasks: Sequence[Task]) -> list[str]:
    return [each.name.rpartition("-")[0] for each in tasks if each.device == "auto"]


def _auto(name: str, tasks: Sequence[Task], parts: Parts) -> dict[str, Any]:
    """Where a network went by itself, and the times from the host to the host, there and on either device."""
    by_device = {each.device: each for each in tasks if each.name.rpartition("-")[0] == name}
    us = {
        device: _found(task, parts, "times", "us", "collage", "host to host us")
        for device, task in by_device.items()
    }
    others = [each for device, each in us.items() if device != "auto"]
    known = us["auto"] is not None and others and None not in others
    return {
        "us": us,
        "launches": _found(by_device["auto"], parts, "compile", "devices"),
        "met": us["auto"] <= _ANYWHERE * min(others) if known else None,
    }


def _quotient(a: float | None, b: float | None) -> float | None:
    return round(a / b, 3) if a and b else None
