"""Values that no scan lets through on the model's usual inputs: they have NaN, infinities or huge numbers.

A mask of negative infinity is such a value, and so are time stamps and hashed ids. A scan of one would find something
in every call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from collage.check.store import ValueStore
from collage.graph.dataflow import Graph
from collage.graph.magnitudes import is_scanned
from collage.native.scan import are_all_ordinary


def extraordinary(graph: Graph, store: ValueStore) -> Iterator[int]:
    """The values of which ``store`` has such arrays, ascending."""
    for value in graph.values:
        if graph.is_constant(value.id) or not is_scanned(value.type.dtype) or value.id not in store:
            continue
        if not are_all_ordinary([store.load(value.id, value.type)]):
            yield value.id


def note(graph: Graph, names: Sequence[str], values: Collection[int]) -> str:
    """A sentence about the inputs that are not scanned, for people, or "" if there is none.

    ``names`` are those of the inputs, in order, and ``values`` the extraordinary ones.
    """
    found = [name for name, value in zip(names, graph.inputs, strict=True) if value in values]
    if not found:
        return ""
    return (
        f"NaN, infinities and huge numbers are not looked for in {', '.join(found)}, whose usual values have some: "
        "only kernels that are right on these read it"
    )
