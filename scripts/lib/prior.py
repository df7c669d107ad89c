"""Adds what databases of measurements tell about kernels to the file that comes with Collage."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import click

from collage.measure.prior import FILE, Kind, Loss, losses_in, read_prior
from collage.measure_db.rows import snapshot


@click.command()
@click.argument("databases", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--file", "path", type=click.Path(path_type=Path), default=FILE, show_default=True)
@click.option("--new", is_flag=True, help="Begin with an empty file.")
def main(databases: tuple[Path, ...], path: Path, new: bool) -> None:
    """Add the losses of kernels in DATABASES to the file.

    What a database says about a network on machines of a class replaces what the file has said about the two.
    """
    found: dict[str, dict[str, list[Loss]]] = defaultdict(lambda: defaultdict(list))
    sources = [] if new else [read_prior(path)]
    for each in databases:
        with snapshot(each) as database:
            sources.append(losses_in(database))
    for source in sources:
        for machine, losses in source.items():
            for network in {loss.network for loss in losses}:
                found[machine][network] = [loss for loss in losses if loss.network == network]
    rows = {machine: [*chain.from_iterable(networks.values())] for machine, networks in found.items()}
    count = write_prior(path, rows)
    networks = {name for each in found.values() for name in each}
    click.echo(
        f"{path}: {count} losses of {len(networks)} networks on {len(found)} kinds of machines, "
        f"{path.stat().st_size:,} bytes"
    )


def write_prior(path: Path, losses: Mapping[str, Sequence[Loss]], most_bytes: int = 1_000_000) -> int:
    """Write losses to a file of at most so many bytes, and return how many are in it.

    If there are too many, those of the rarest regions are left out.
    """
    seen: dict[str, int] = defaultdict(int)
    for rows in losses.values():
        for each in rows:
            seen[each.region] += each.count
    most = sorted(seen, key=lambda region: (-seen[region], region))
    while True:
        text = _text(losses, set(most))
        if len(text) <= most_bytes or not most:
            path.write_text(text)
            return sum(each.region in set(most) for rows in losses.values() for each in rows)
        most = most[: len(most) * 4 // 5]


def _text(losses: Mapping[str, Sequence[Loss]], wanted: set[str]) -> str:
    networks: dict[str, int] = {}
    kinds: dict[Kind, int] = {}
    regions: dict[str, int] = {}
    machines: dict[str, list[list[float]]] = {}
    for machine, rows in sorted(losses.items()):
        machines[machine] = [
            [
                networks.setdefault(each.network, len(networks)),
                regions.setdefault(each.region, len(regions)),
                kinds.setdefault(each.kind, len(kinds)),
                each.count,
                round(each.mean, 2),
            ]
            for each in sorted(rows, key=lambda each: (each.network, each.region, each.kind))
            if each.region in wanted
        ]
    data = {"networks": [*networks], "kinds": [*kinds], "regions": [*regions]}
    return json.dumps({**data, "machines": machines}, separators=(",", ":")) + "\n"
