"""What measurements of all models tell about candidates: by how much they lost, on regions of the same operators.

The rows of a database are one data set. They say which candidates to measure first, and which ones have lost so often
that they are not measured on one more region (see ``Contenders``).
"""

from __future__ import annotations

import math
from collections import defaultdict

import tvm

from collage.measure.contenders import Losses, rivals_of
from collage.measure.request_keys import precision_in, variant_in
from collage.measure.settings import MeasureSettings
from collage.measure_db.database import Database


def known_losses(database: Database, settings: MeasureSettings) -> Losses:
    """The losses of all kernels in the database that were measured with these libraries, on as many threads.

    Regions with the same digest are the same operators on the same shapes, so that their kernels are rivals, as far as
    their precisions allow (see ``contenders``). Raises DatabaseError.
    """
    regions: dict[str, list[tuple[str, str, str, float]]] = defaultdict(list)
    for key, description, us in database.times(settings.hardware, settings.threads, tvm.__version__):
        if settings.versions.get(key.backend) == key.backend_version and us > 0:
            operators = description.partition(" (")[0]
            regions[key.digest].append((operators, key.backend, variant_in(key), us))
    losses = Losses()
    for kernels in regions.values():
        fastest_us: dict[str, float] = {}
        for *_, variant, us in kernels:
            precision = precision_in(variant)
            fastest_us[precision] = min(us, fastest_us.get(precision, us))
        for operators, backend, variant, us in kernels:
            rivals_us = (fastest_us[each] for each in rivals_of(precision_in(variant)) & fastest_us.keys())
            losses.note(operators, (backend, variant), math.log(us / min(rivals_us)))
    return losses
