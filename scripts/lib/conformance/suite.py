"""The parent's side of the suite: results on disk as they come, and tables of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scripts.lib.case_pool import Child, run_all

CHILD = "scripts.lib.conformance.child"
BACKENDS = {
    "collage": "collage.onnx_backend:CollageBackend",
    "onnxruntime": "scripts.lib.conformance.engines:OnnxRuntime",
    "openvino": "scripts.lib.conformance.engines:OpenVino",
}
"""The class behind each name, which implements onnx.backend.base.Backend."""

CATEGORIES = ("Node", "Simple", "PyTorchConverted", "PyTorchOperator")
"""Kinds of tests; the suite also knows "Real", whole networks with made-up weights (scripts/bench cpu --real)."""
_MESSAGE_CHARS = 160


@dataclass(frozen=True)
class Result:
    """The result of a test on a backend: the members of an ``Outcome``."""

    backend: str
    test: str
    status: str
    message: str
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether the backend gave the right outputs."""
        return self.status == "passed"


class Results(dict[tuple[str, str], Result]):
    """Results by backend and test. With a path they are kept in a file of JSON lines, which is read first."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path is not None and path.exists() else ()
        found = (Result(**json.loads(line)) for line in lines)
        super().__init__({(each.backend, each.test): each for each in found})

    def add(self, result: Result) -> None:
        """Write a result to the file, and keep it."""
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")
        self[result.backend, result.test] = result


def run_suite(
    backend: str,
    choose: Callable[[Sequence[str]], Iterable[str]],
    results: Results,
    limit_s: float,
    jobs: int,
    show: Callable[[Result], None] = lambda _: None,
) -> None:
    """Run the tests that ``choose`` picks of all names and ``results`` does not hold yet, in ``jobs`` children."""
    children = [Child(CHILD, backend, limit_s, fork=True) for _ in range(jobs)]
    try:
        chosen = [test for test in choose(children[0].start()) if (backend, test) not in results]
    except BaseException:
        for child in children:
            child.close()
        raise

    def take(test: str, outcome: Any) -> None:
        result = Result(backend, test, **asdict(outcome))
        results.add(result)
        show(result)

    run_all(children, chosen, lambda child, test: child.ask(test), take)


def summary(results: Mapping[tuple[str, str], Result], backends: Sequence[str]) -> dict[str, Any]:
    """Counts by backend and category, and the tests that one passes and another does not."""
    every = sorted({test for _, test in results})
    common = [test for test in every if all((backend, test) in results for backend in backends)]
    passed = {backend: {test for test in common if results[backend, test].passed} for backend in backends}
    return {
        "tests": len(common),
        "categories": {each: sum(test.startswith(f"{each}/") for test in common) for each in CATEGORIES},
        "backends": {
            backend: {
                "passed": len(passed[backend]),
                "by_category": {
                    each: sum(test.startswith(f"{each}/") for test in passed[backend]) for each in CATEGORIES
                },
                **{
                    status: [test for test in common if results[backend, test].status == status]
                    for status in ("crashed", "hung")
                },
                "missed": {
                    test: {"message": results[backend, test].message, "passed_by": others}
                    for test in common
                    if test not in passed[backend] and (others := [b for b in backends if test in passed[b]])
                },
            }
            for backend in backends
        },
        "passed_by_none": {
            test: {backend: results[backend, test].message for backend in backends}
            for test in common
            if not any(test in each for each in passed.values())
        },
    }


def markdown(found: Mapping[str, Any]) -> str:
    """The summary as the table of docs/notes/onnx-suite.md, and the tests that a backend misses and another passes."""
    backends = found["backends"]
    rows = [["tests", *backends], ["---"] * (1 + len(backends))]
    for category, total in found["categories"].items():
        rows.append([f"{category} ({total})", *(each["by_category"][category] for each in backends.values())])
    rows.append([f"all ({found['tests']})", *(each["passed"] for each in backends.values())])
    for status in ("crashed", "hung"):
        rows.append([status, *(len(each[status]) for each in backends.values())])
    lines = [f"| {' | '.join(map(str, row))} |" for row in rows]
    for name, each in backends.items():
        lines += ["", f"{name} misses {len(each['missed'])} tests that another passes."]
        lines += [
            f"- `{test}` (passed by {', '.join(miss['passed_by'])}): {miss['message'][:_MESSAGE_CHARS]}"
            for test, miss in each["missed"].items()
        ]
    return "\n".join(lines)
