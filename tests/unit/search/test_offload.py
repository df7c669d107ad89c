"""Strings of digits and what they mean: repair, genes, and that nothing is lost."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from collage.backends.base import VIEW
from collage.graph.convexity import is_convex, quotient_order
from collage.graph.dataflow import Graph
from collage.search.candidate import Candidate
from collage.search.dp import place
from collage.search.offload import Encoding, Offloaded, encode
from collage.search.placement import Placement, finish
from tests.helpers.strategies import graph_of, nasnet_like, problems

ENGINES = ("ort", "ov")


def encoding_of(graph: Graph, placement: Placement, most_genes: int = 48) -> Encoding:
    every = range(len(graph.nodes))
    kinds = {c: str(c.nodes) for c in placement.candidates}
    return encode(graph, placement, dict.fromkeys(ENGINES, every), kinds.__getitem__, {VIEW}, most_genes=most_genes)


def singles(graph: Graph, backends: dict[int, str] | None = None) -> Placement:
    """A kernel for each node."""
    chosen = [Candidate((n,), (backends or {}).get(n, "lib"), 1.0) for n in range(len(graph.nodes))]
    return finish(graph, chosen, 0.0)


def check_repaired(graph: Graph, found: Offloaded) -> None:
    """Each node once, each region convex, and all in an order in which they can run."""
    parts = [c.nodes for c in found.kept] + [nodes for nodes, _ in found.regions]
    assert sorted(n for part in parts for n in part) == list(range(len(graph.nodes)))
    assert all(is_convex(graph, part) for part in parts)
    assert sorted(quotient_order(graph, parts)) == list(range(len(parts)))


@st.composite
def encoded(draw: st.DrawFn) -> tuple[Graph, Encoding]:
    """Op-level placements of random graphs: kernels of several nodes, engines, views."""
    graph, candidates = draw(problems(max_nodes=9))
    names = {"a": "lib", "b": "ort", "c": "ov"}
    found = [Candidate(c.nodes, names[c.backend], c.cost_us) for c in candidates]
    found += [Candidate((n,), draw(st.sampled_from(["lib", "lib", VIEW])), 5.0) for n in range(len(graph.nodes))]
    return graph, encoding_of(graph, place(graph, found, 0.5), draw(st.sampled_from([2, 48])))


@settings(max_examples=100, deadline=None)
@given(encoded(), st.data())
def test_whatever_the_string_the_placement_is_convex_and_has_no_circle(
    case: tuple[Graph, Encoding], data: st.DataObject
) -> None:
    graph, encoding = case
    genome = tuple(data.draw(st.sampled_from(gene.choices)) for gene in encoding.genes)
    found = encoding.decode(genome)
    check_repaired(graph, found)
    wanted = {
        n: d
        for gene, d in zip(encoding.genes, genome, strict=True)
        for i in gene.parts
        for n in encoding.parts[i].nodes
    }
    for nodes, engine in found.regions:
        assert all(wanted[n] == 0 or ENGINES[wanted[n] - 1] == engine for n in nodes if n in wanted)
    for node, digit in wanted.items():
        assert digit == 0 or any(node in nodes for nodes, _ in found.regions)


def test_regions_that_would_wait_for_each_other_are_split() -> None:
    graph = graph_of([(0, 1), (2, 3)], 4)
    found = encoding_of(graph, singles(graph)).decode((1, 2, 2, 1))  # {0, 3} and {1, 2} wait in a circle
    check_repaired(graph, found)
    assert len(found.regions) == 3


def test_an_engine_waits_for_kernels_to_have_more_in_one_region() -> None:
    # 0 -> 2 and 1 -> 2: with 1 first, the engine takes 0 and 2 at once.
    graph = graph_of([(0, 2), (1, 2)], 3)
    found = encoding_of(graph, singles(graph)).decode((1, 0, 1))
    assert found.regions == (((0, 2), "ort"),)


def test_views_go_along_only_where_the_region_needs_them() -> None:
    graph = graph_of([(0, 1), (1, 2), (2, 3)], 4)
    encoding = encoding_of(graph, singles(graph, {1: VIEW, 3: VIEW}))
    assert len(encoding.genes) == 2
    assert encoding.decode((1, 1)).regions == (((0, 1, 2), "ort"),)
    assert encoding.decode((1, 0)).regions == (((0,), "ort"),)


def test_an_engine_gets_only_what_it_can_run() -> None:
    graph = graph_of([(0, 1), (1, 2)], 3)
    able = {"ort": {0, 1, 2}, "ov": {0, 2}, "none": ()}
    encoding = encode(graph, singles(graph), able, lambda c: "", {VIEW})
    assert [gene.choices for gene in encoding.genes] == [(0, 1, 2), (0, 1), (0, 1, 2)]
    assert encoding.all_on("ov") == (2, 0, 2)


def test_layers_share_a_gene_where_there_are_many_kernels() -> None:
    graph, candidates = nasnet_like(cells=6)
    placement = place(graph, [c for c in candidates if c.backend in ("tvm", "dnnl")], 0.5)
    encoding = encoding_of(graph, placement)
    assert 4 <= len(encoding.genes) <= 48 < len(placement.candidates)
    moved = [index for gene in encoding.genes for index in gene.parts]
    assert sorted(moved) == list(range(len(placement.candidates)))
    check_repaired(graph, encoding.decode(tuple(n % 3 for n in range(len(encoding.genes)))))
    assert len(encoding.decode(encoding.all_on("ort")).regions) == 1
