"""Which machines may measure for which: equal facts, and every difference is told."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from collage.cluster.facts import MachineFacts, differences, facts_here
from collage.cluster.nodes import ClusterNode, judge
from collage.kernel.target import host, usable_cores
from collage.measure.worker.serialisation import pickle_backend
from tests.helpers.backends_for_tests import NumpyBackend

HERE = MachineFacts("Zen 5", "1a2b", 8, "3.11.4", "0.1.0 (aa)", {"numpy": "2.4.6", "backend onednn": "3.2"})
ALIKE, OTHER, HEAD = (
    ClusterNode("1", "one (10.0.0.1)", 8.0),
    ClusterNode("2", "two (10.0.0.2)", 8.0),
    ClusterNode("3", "head", 0.0),
)


def test_this_machine_matches_itself() -> None:
    backends = {"numpy": pickle_backend("numpy", NumpyBackend())}
    told = facts_here(backends)
    facts = MachineFacts.of_plain(json.loads(json.dumps(told)))
    assert facts == MachineFacts.of_plain(facts_here(backends))
    assert (facts.device, facts.flags, facts.cores) == (host().device, host().flags, usable_cores())
    assert facts.versions["backend numpy"] == facts.versions["numpy"] != ""
    assert facts.versions["apache-tvm"]
    assert differences(facts, facts) == []


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        (replace(HERE, device="Xeon", flags="9"), "its CPU is Xeon, not Zen 5"),
        (replace(HERE, flags="9"), "its CPU has other instruction sets (9, not 1a2b)"),
        (replace(HERE, cores=1), "it has 1 core to use, not 8"),
        (replace(HERE, python="3.12.1"), "it has Python 3.12.1, not 3.11.4"),
        (replace(HERE, collage="0.1.0 (bb)"), "it has Collage 0.1.0 (bb), not 0.1.0 (aa)"),
        (
            replace(HERE, versions={"numpy": "2.4.6", "backend onednn": "3.1"}),
            "it has backend onednn 3.1, not 3.2",
        ),
        (replace(HERE, versions={"numpy": "2.4.6"}), "it has no backend onednn"),
    ],
)
def test_every_difference_is_told(there: MachineFacts, expected: str) -> None:
    assert differences(HERE, there) == [expected]


def test_a_backend_that_is_not_there() -> None:
    facts = MachineFacts.of_plain(facts_here({"odd": b"no pickle", "gone": _pickle_of_missing_module()}))
    assert facts.versions["backend odd"].startswith("(UnpicklingError: ")
    assert "No module named 'no_such_module'" in facts.versions["backend gone"]


def _pickle_of_missing_module() -> bytes:
    return b"cno_such_module\nBackend\n."


def test_nodes_are_refused_with_the_reason() -> None:
    facts = {ALIKE: HERE, OTHER: replace(HERE, cores=4, python="3.12.0")}
    found = judge(HERE, facts, [ALIKE, OTHER, HEAD])
    assert found.matching == (ALIKE,)
    assert found.refused == {
        "two (10.0.0.2)": "it has 4 cores to use, not 8, it has Python 3.12.0, not 3.11.4",
        "head": "Ray gives out no CPUs there",
    }
    assert str(found) == "1 node (2 left out)"
    assert judge(HERE, {ALIKE: "it did not answer"}, [ALIKE]).refused == {ALIKE.name: "it did not answer"}
