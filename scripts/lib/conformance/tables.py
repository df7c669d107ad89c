"""Results of the suite side by side: counts, and where the backends differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scripts.lib.conformance.child import CATEGORIES
from scripts.lib.conformance.suite import Result, Results

_MESSAGE_CHARS = 160


def summary(results: Results, backends: Sequence[str]) -> dict[str, Any]:
    """Counts by backend and category, and the tests that one passes and another does not."""
    found = {backend: results.of(backend) for backend in backends}
    both = [test for test in _tests(found) if all(test in each for each in found.values())]
    return {
        "tests": len(both),
        "backends": {
            backend: {
                "passed": sum(each[test].passed for test in both),
                "by_category": {
                    category: [sum(each[t].passed for t in of), len(of)]
                    for category in CATEGORIES
                    for of in [[t for t in both if t.startswith(f"{category}/")]]
                },
                "crashed": [test for test in both if each[test].status == "crashed"],
                "hung": [test for test in both if each[test].status == "hung"],
            }
            for backend, each in found.items()
        },
        "missed": {
            backend: {
                test: {
                    "message": each[test].message,
                    "passed_by": [b for b in backends if found[b][test].passed],
                }
                for test in both
                if not each[test].passed and any(found[b][test].passed for b in backends)
            }
            for backend, each in found.items()
        },
        "passed_by_none": {
            test: {backend: found[backend][test].message for backend in backends}
            for test in both
            if not any(each[test].passed for each in found.values())
        },
    }


def markdown(found: Mapping[str, Any]) -> str:
    """The summary as the tables of docs/notes/onnx-suite.md."""
    backends = list(found["backends"])
    head = ["tests", *backends]
    lines = [_row(head), _row(["---"] * len(head))]
    for category in CATEGORIES:
        counts = {b: found["backends"][b]["by_category"][category] for b in backends}
        total = counts[backends[0]][1] if backends else 0
        lines.append(_row([f"{category} ({total})", *(str(counts[b][0]) for b in backends)]))
    lines.append(_row([f"all ({found['tests']})", *(str(found["backends"][b]["passed"]) for b in backends)]))
    for status in ("crashed", "hung"):
        lines.append(_row([status, *(str(len(found["backends"][b][status])) for b in backends)]))
    return "\n".join(lines)


def differences(found: Mapping[str, Any], backend: str) -> str:
    """A list of the tests that the backend misses and another passes."""
    missed = found["missed"][backend]
    if not missed:
        return f"{backend} passes every test that another passes."
    return "\n".join(
        f"- `{test}` (passed by {', '.join(each['passed_by'])}): {each['message'][:_MESSAGE_CHARS]}"
        for test, each in missed.items()
    )


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _tests(found: Mapping[str, Mapping[str, Result]]) -> list[str]:
    return sorted({test for each in found.values() for test in each})
