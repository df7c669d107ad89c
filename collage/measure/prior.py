"""What is known before measuring: by how much candidates lost, on regions of the same operators and shapes of a class.

The rows of this machine's database are one source, and a file that comes with Collage (``scripts/prior`` makes it) is
another one. They decide the order in which candidates are measured, and never the result.
"""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import TensorType
from collage.kernel.target import hardware_of
from collage.measure.request_keys import precision_in, variant_in, variant_text
from collage.measure.timing.race import rivals_of
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.database import Database
from collage.measure_db.keys import Fact, read_text

WITHOUT_VARIABLE = "COLLAGE_PRIOR_WITHOUT"
"""Environment variable with the name of a model. What it has contributed to the file is left out."""
FILE = Path(__file__).parent / "prior.json"

_PRIOR = 0.1
"""The loss that is expected where nothing is known."""
_OWN = 4.0
"""A loss of this machine's database counts as so many of the file's."""

Kind: TypeAlias = "tuple[str, str]"
"""The name of a backend, and the ``variant_text`` of a variant."""

REGION: Fact[str] = Fact("region", str, read_text)
"""The class of a region, under its digest and the name of the model that it is part of."""


@dataclass(frozen=True)
class Loss:
    """The mean loss of a kind of kernel on ``count`` regions of a class, in one network.

    A loss is the logarithm of the ratio of its time to that of its fastest rival.
    """

    network: str
    region: str
    kind: Kind
    count: int
    mean: float


def class_of(subgraph: Subgraph) -> str:
    """The operators of a region, and powers of two near the numbers of elements that it writes and reads."""
    read = [*subgraph.input_types, *map(subgraph.model.graph.type_of, subgraph.constants)]
    return f"{subgraph}|{_bucket(subgraph.output_types)}|{_bucket(read)}"


def _bucket(types: Iterable[TensorType]) -> int:
    return sum(math.prod(kind.shape) for kind in types).bit_length()


def machine_class(hardware: str) -> str:
    """The vendor and the hash of the instruction sets in a ``Target.measured_on``."""
    words = hardware_of(hardware).split() or [""]
    return f"{words[0]} {words[-1]}"


class Losses:
    """Mean losses by class of region and kind, by operators and kind, by kind, and by backend."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, ...], list[float]] = defaultdict(lambda: [0.0, 0.0])

    def note(self, loss: Loss, weight: float = 1.0) -> None:
        """Count a loss."""
        for key in _keys(loss.region, loss.kind):
            found = self._of[key]
            found[0] += weight * loss.count
            found[1] += weight * loss.count * loss.mean

    def expected(self, region: str, kind: Kind) -> float:
        """The mean loss of the most similar candidates."""
        for key in _keys(region, kind):
            if key in self._of:
                weight, total = self._of[key]
                return total / weight
        return _PRIOR

    def in_order(self, region: Sequence[CandidateRequest], subgraph: Subgraph) -> list[CandidateRequest]:
        """The candidates of a region, those first that are expected to lose the least."""
        about = class_of(subgraph)
        return sorted(region, key=lambda each: self.expected(about, (each.backend, variant_text(each.variant))))


def _keys(region: str, kind: Kind) -> Iterator[tuple[str, ...]]:
    backend, variant = kind
    yield region, backend, variant
    yield region.partition("|")[0], backend, variant
    yield backend, variant
    yield (backend,)


def known_losses(database: Database, hardware: str, threads: int, path: Path = FILE) -> Losses:
    """The losses that the database and the file know of machines like this one. Raises DatabaseError."""
    losses = Losses()
    without = os.environ.get(WITHOUT_VARIABLE, "")
    for each in read_prior(path).get(_place(hardware, threads), ()):
        if not without or each.network != without:
            losses.note(each)
    for each in losses_in(database).get(_place(hardware, threads), ()):
        losses.note(each, _OWN)
    return losses


def losses_in(database: Database) -> Mapping[str, Sequence[Loss]]:
    """The losses of all rows of a database, by class of machine and threads.

    Regions with the same digest are the same operators on the same shapes, so that their kernels are rivals, as far as
    their precisions allow. Raises DatabaseError.
    """
    regions: dict[tuple[str, str], list[tuple[Kind, float]]] = defaultdict(list)
    operators: dict[str, str] = {}
    for key, description, us in database.times():
        if us > 0:
            regions[_place(key.hardware, key.threads), key.digest].append(((key.backend, variant_in(key)), us))
            operators[key.digest] = description.partition(" (")[0]
    classes: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for name, text in database.facts_of(REGION.name):
        digest, _, network = name.partition(" ")
        classes[digest].append((network, str(json.loads(text))))
    sums: dict[tuple[str, str, str, Kind], list[float]] = defaultdict(list)
    for (machine, digest), kernels in regions.items():
        if len(kernels) < 2:
            continue  # nobody has lost against nobody
        fastest_us: dict[str, float] = {}
        for (_, variant), us in kernels:
            precision = precision_in(variant)
            fastest_us[precision] = min(us, fastest_us.get(precision, us))
        for kind, us in kernels:
            rivals_us = (fastest_us[each] for each in rivals_of(precision_in(kind[1])) & fastest_us.keys())
            loss = math.log(us / min(rivals_us))
            for network, region in classes.get(digest, [("", operators[digest])]):
                sums[machine, network, region, kind].append(loss)
    found: dict[str, list[Loss]] = defaultdict(list)
    for (machine, network, region, kind), each in sums.items():
        found[machine].append(Loss(network, region, kind, len(each), sum(each) / len(each)))
    return found


def _place(hardware: str, threads: int) -> str:
    return f"{machine_class(hardware)} on {threads}"


def read_prior(path: Path) -> Mapping[str, Sequence[Loss]]:
    """The losses in a file, by class of machine and threads; none if there is no file."""
    if not path.exists():
        return {}
    data: Any = json.loads(path.read_text())
    names, kinds, regions = data["networks"], data["kinds"], data["regions"]
    return {
        machine: [
            Loss(names[at], regions[region], (kinds[kind][0], kinds[kind][1]), int(count), float(mean))
            for at, region, kind, count, mean in rows
        ]
        for machine, rows in data["machines"].items()
    }
