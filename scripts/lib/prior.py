"""Adds what databases of measurements tell about kernels to the file that comes with Collage."""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from pathlib import Path

import click

from collage.measure.prior import FILE, Loss, losses_in, read_prior, write_prior
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
