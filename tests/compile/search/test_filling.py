"""What the most promising offers lack before there is a placement of them."""

from __future__ import annotations

from collage.graph.storage import BLOCKED
from collage.kernel.options import Variant
from collage.measure.worker.protocol import CandidateRequest
from collage.search.candidates import Offer
from collage.search.filling import filling
from tests.helpers.compiler.null import imported

MODEL = imported()
"""Four operators, one after another."""


def offers(backend: str, *node_sets: tuple[int, ...], precision: str = "") -> list[Offer]:
    return [Offer(CandidateRequest(nodes, backend, Variant(precision=precision)), "pattern") for nodes in node_sets]


def lacking(few: list[Offer], others: list[Offer]) -> set[tuple[str, tuple[int, ...]]]:
    found = filling(MODEL, [*few, *others], few, ())
    assert not any(each.request.variant.precision for each in found)
    return {(each.request.backend, each.request.nodes) for each in found}


def test_what_is_left_between_subgraphs_is_taken_from_all_backends() -> None:
    """Two libraries share node 1: without it by itself, or the others without it, no placement has it once."""
    few = [*offers("one", (0, 1)), *offers("other", (1, 2, 3))]
    rests = [*offers("one", (0,)), *offers("other", (2, 3), (2,), (3,)), *offers("engine", (0,), (2, 3))]
    wide = [*offers("engine", (0, 1, 2)), *offers("other", (0,), precision="bf16")]
    assert lacking(few, [*rests, *wide]) == {("one", (0,)), ("engine", (0,))}


def test_nothing_is_lacking_where_there_is_a_placement_or_none_at_all() -> None:
    few = offers("one", (0, 1), (2, 3))
    assert lacking(few, offers("one", (0,), (1,))) == set()
    assert lacking(offers("one", (0, 1), (1, 2, 3)), offers("one", (1,))) == set()


def test_layouts_need_layout_transforms_and_nothing_else() -> None:
    blocked = Variant((BLOCKED,), (BLOCKED,))
    few = [Offer(CandidateRequest((0, 1), "one", blocked), "pattern"), *offers("one", (2, 3))]
    assert lacking(few, offers("one", (0,), (1,))) == set()
