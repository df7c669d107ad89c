"""Completion in a shell: files that an argument may be, and names of backends."""

from __future__ import annotations

import os
from collections.abc import Callable

import click
from click.shell_completion import CompletionItem

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

MODULES = (".collage",)
ONNX = (".onnx",)
MODELS = (*ONNX, ".cbm", ".joblib", ".json", ".pickle", ".pkl", ".txt", ".ubj")
"""Ends of files that ``collage compile`` takes."""


def complete_files(ends: tuple[str, ...]) -> Completer:
    """Offer folders and the files with one of these ends; all files if there are none.

    A folder that is the only choice is opened: shells put a space behind a single choice.
    """

    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        found = _matching(incomplete, ends)
        while len(found) == 1 and found[0].endswith("/") and (inside := _matching(found[0], ends)):
            found = inside
        return [CompletionItem(each) for each in found] or [CompletionItem(incomplete, type="file")]

    return complete


def _matching(begun: str, ends: tuple[str, ...]) -> list[str]:
    folder, name = os.path.split(begun)
    try:
        entries = sorted(os.scandir(os.path.expanduser(folder) or "."), key=lambda entry: entry.name)
    except OSError:
        return []
    shown = [entry for entry in entries if entry.name.startswith(name) and (name or not entry.name.startswith("."))]
    wanted = [entry for entry in shown if entry.is_dir() or entry.name.lower().endswith(ends)]
    return [os.path.join(folder, entry.name) + "/" * entry.is_dir() for entry in wanted]


def complete_backends(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the names of backends that are not there yet, after the commas of ``incomplete``."""
    return _names(incomplete, engines=False)


def complete_engines(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The same for backends that run whole models."""
    return _names(incomplete, engines=True)


def _names(incomplete: str, *, engines: bool) -> list[CompletionItem]:
    from collage.api import default_registry
    from collage.backends.base import BackendKind

    registry = default_registry()
    before, comma, name = incomplete.rpartition(",")
    found = [each for each in registry.names if not engines or registry[each].kind is BackendKind.ENGINE]
    others = {*found} - {*before.split(",")}
    return [CompletionItem(f"{before}{comma}{each}") for each in sorted(others) if each.startswith(name)]
