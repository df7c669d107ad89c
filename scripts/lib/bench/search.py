"""The command ``scripts/bench search``."""

from __future__ import annotations

import click

from collage.cli.console import print_json, say
from collage.cli.options import JSON_OPTION


@click.command("search")
@click.argument("cells", type=click.IntRange(min=1), default=18)
@JSON_OPTION
def command(cells: int, as_json: bool) -> None:
    """Time the op-level search against the exact solver.

    The graph is like NASNet-A's with so many CELLS; the default of 18 has 1,188 nodes and about 14,000 candidates.
    Dynamic programming, the exact solver and the check of convexity run on the same graph in one process. Times are
    medians of 5 runs. This needs the development extras (hypothesis and scipy).

    \b
    Examples:
      scripts/bench search
      scripts/bench search 6
    """
    from scripts.lib.studies.search import time_search

    results = [time_search(cells, horizontal=horizontal) for horizontal in (False, True)]
    if as_json:
        print_json({"cells": cells, "graphs": results})
        return
    for each in results:
        pairs = ", pairs across branches" if each["horizontal"] else ""
        ratio = each["exact_s"] / each["dp_s"]
        say(
            f"{each['nodes']} nodes, {each['candidates']} candidates{pairs}: dp {each['dp_s']:.3f} s, "
            f"exact solver {each['exact_s']:.3f} s ({ratio:.1f} x), convexity {each['convexity_s']:.3f} s; "
            f"{each['dp_us']:.3f} us against {each['exact_us']:.3f} us, {each['regions']} regions, "
            f"exact={each['exact']}"
        )
