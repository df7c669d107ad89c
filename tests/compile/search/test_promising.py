"""The most promising offers: they cover what all offers cover, and are few."""

from __future__ import annotations

from collections.abc import Iterable

from collage.kernel.options import Variant
from collage.measure.worker.protocol import CandidateRequest
from collage.search.candidates import Offer
from collage.search.promising import promising


def offers(backend: str, *node_sets: Iterable[int], precision: str = "") -> list[Offer]:
    variant = Variant(precision=precision)
    return [Offer(CandidateRequest(tuple(sorted(nodes)), backend, variant), "pattern") for nodes in node_sets]


def chosen(found: Iterable[Offer]) -> set[tuple[str, tuple[int, ...]]]:
    return {(each.request.backend, each.request.nodes) for each in found}


def test_libraries_on_their_largest_subgraphs_and_engines_on_the_rest() -> None:
    library = offers("lib", [0], [0, 1], [0, 1, 2])
    engine = offers("engine", [0], [3], [0, 1, 2, 3], [2, 3])
    assert chosen(promising([*library, *engine], 5, {"engine"}, {4})) == {
        ("lib", (0, 1, 2)),
        ("engine", (3,)),
    }
    assert ("engine", (0, 1, 2, 3)) in chosen(promising([*library, *engine], 4, {"engine"}, ()))


def test_larger_subgraphs_in_reduced_precision_take_nothing_from_exact_ones() -> None:
    """A library that takes one function more (2) in bfloat16, and an engine on what is left of it without that."""
    exact = offers("lib", [0], [0, 1])
    engine = [*offers("engine", [0], [1], [2]), *offers("engine", [2], precision="bf16")]
    reduced = offers("lib", [0], [0, 1], [0, 1, 2], precision="bf16")
    found = promising([*exact, *engine, *reduced], 4, {"engine"}, {3})
    in_bf16 = [each for each in found if each.request.variant.precision]
    assert chosen(in_bf16) == {("lib", (0, 1, 2))}
    assert [each for each in found if each not in in_bf16] == promising([*exact, *engine], 4, {"engine"}, {3})
    assert chosen(found) == {("lib", (0, 1)), ("engine", (2,)), ("lib", (0, 1, 2))}
