"""The device of a compile: which backends may compute, and what is missing where a device cannot be used."""

from __future__ import annotations

from collections.abc import Sequence

from collage.backends.base import Backend
from collage.backends.registry import Registry
from collage.core.cuda import NoGpuError, gpu
from collage.errors import UsageError, unknown_names
from collage.graph.storage import CUDA, HOST

AUTO = "auto"
"""No device in particular: the search takes each one that pays."""


def backends_on(device: str, registry: Registry, names: Sequence[str] | None) -> dict[str, Backend]:
    """The backends that a compile for the device may use, of those that ``Registry.select`` gives for the names.

    With ``AUTO`` these are all of them. With ``HOST`` they are those that compute there. For any other device there has
    to be one that computes on it; the others stay beside it, and the search decides. Raises UsageError, which
    says what is missing.
    """
    known = {HOST, *(registry[name].device for name in registry.names)}
    if device not in (AUTO, *known):
        raise unknown_names("device", [device], (AUTO, *known))
    chosen = registry.select(names)
    if device == HOST:
        others = [name for name, each in chosen.items() if each.device != HOST]
        if others and names is not None:
            raise UsageError(
                f"{', '.join(others)} would compute on {chosen[others[0]].device}, not on {HOST}: "
                f"leave out --device {HOST}, or take other backends."
            )
        return {name: each for name, each in chosen.items() if each.device == HOST}
    if device != AUTO and not any(each.device == device for each in chosen.values()):
        raise UsageError(
            f"nothing here computes on {device}: {_missing(device, registry, names)}. "
            f"With --device {HOST} or {AUTO} the CPU does."
        )
    return chosen


def _missing(device: str, registry: Registry, names: Sequence[str] | None) -> str:
    """The reason why no chosen backend computes on the device."""
    if device == CUDA:
        try:
            gpu()
        except NoGpuError as error:
            return f"{error}; {error.fix}" if error.fix else str(error)
    able = [name for name in registry.names if registry[name].device == device]
    if names is not None and not {*able} & {*names}:
        return f"your choice of backends leaves out all that do ({', '.join(able)})"
    reasons = registry.availability()
    return "; ".join(f"{name} is not available ({reasons[name].reason})" for name in able)
