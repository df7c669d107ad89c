"""The command ``collage backends``."""

from __future__ import annotations

import click

from collage.cli.console import print_json, print_table
from collage.cli.options import JSON_OPTION


@click.command()
@JSON_OPTION
def backends(as_json: bool) -> None:
    """List the backends: which can be used here, and how to install the others.

    Packages add backends through the entry-point group collage.backends; those are listed too.

    \b
    Examples:
      collage backends
      collage backends --json | jq '.backends[] | select(.available) | .name'
    """
    from collage.api import default_registry
    from collage.native.library import core_problem

    registry = default_registry()
    found = [
        {
            "name": name,
            "kind": registry[name].kind.value,
            "available": bool(probe),
            "version": probe.version,
            "reason": probe.reason,
            "untried": registry[name].untried,
        }
        for name, probe in registry.availability().items()
    ]
    if as_json:
        core = {"available": not core_problem(), "reason": core_problem()}
        print_json({"backends": found, "problems": dict(registry.problems), "native_core": core})
        return
    rows = []
    for each in found:
        note = "available" if each["available"] else f"not available: {each['reason']}"
        if each["untried"] and str(each["untried"]) not in note:
            note += f"; it {each['untried']}"
        rows.append((*(str(each[key]) for key in ("name", "kind", "version")), note))
    rows += [(name, "plug-in", "", f"cannot be loaded: {why}") for name, why in registry.problems.items()]
    note = f"not available: {core_problem()}" if core_problem() else "available"
    rows.append(("native core", "team of threads", "", note))
    print_table(("backend", "kind", "version", ""), rows, wide=True)
