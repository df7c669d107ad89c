"""Writes docs/operators.md: the operators as rules see them, from the models that backends are tried on."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from collage.frontend.model import import_model
from collage.patterns.names import aliases_of, short_name
from collage.testing.catalogue import catalogue

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operators.md"
_BEGINNING = (
    "# Operators\n\n"
    "<!-- Written by scripts/operators from the code. Do not edit it. -->\n\n"
    "Patterns and rules see a model as Relax operators. `op.name` in a rule is the short name. It equals the aliases, "
    "too, and so does the name in `is_op`. `op.attr` has the attributes. Arguments that are no tensors stand beside "
    "them as `arg<position>`. `op.input_types` has one type for each tensor; the tensors of a tuple, which `concat` "
    "reads, are inputs one by one. The last column has the ONNX operators that become this operator, alone or with "
    "others.\n\n"
    "ONNX operators that TVM cannot convert stay whole: their name is `onnx.` and ONNX's, such as "
    "`onnx.NonMaxSuppression`, and engines run them.\n\n"
    "| name | Relax | aliases | inputs | attributes | ONNX |\n"
    "|---|---|---|---|---|---|\n"
)


def page() -> str:
    """The page as it has to be."""
    inputs: defaultdict[str, set[int]] = defaultdict(set)
    attributes: defaultdict[str, dict[str, set[str]]] = defaultdict(dict)
    sources: defaultdict[str, set[str]] = defaultdict(set)
    for trial in catalogue():
        model = import_model(trial.model)
        for node in model.graph.nodes:
            if node.op.startswith("onnx."):
                continue
            inputs[node.op].add(len(node.inputs))
            for name, value in node.attrs.items():
                attributes[node.op].setdefault(name, set()).add(_type(value))
            if node.source >= 0:
                sources[node.op].add(model.onnx.graph.node[node.source].op_type)
    rows = (
        "| "
        + " | ".join(
            (
                f"`{short_name(op)}`",
                f"`{op}`",
                _code(aliases_of(short_name(op))),
                _range(inputs[op]),
                _attributes(attributes[op]),
                ", ".join(sorted(sources[op])),
            )
        )
        + " |"
        for op in sorted(inputs, key=lambda op: (str(short_name(op)), op))
    )
    return _BEGINNING + "\n".join(rows) + "\n"


def _type(value: Any) -> str:
    if not isinstance(value, tuple):
        return type(value).__name__ if value is not None else "None"
    inner = sorted({_type(each) for each in value})
    return f"tuple of {' or '.join(inner)}" if inner else "tuple"


def _attributes(found: Mapping[str, set[str]]) -> str:
    return ", ".join(f"`{name}`: {_types(found[name])}" for name in sorted(found))


def _types(found: Iterable[str]) -> str:
    return " or ".join(sorted(found, key=lambda each: (each == "None", each)))


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _range(numbers: Iterable[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def main() -> int:
    """Write the page, or only compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, and fail if the page is not up to date")
    options = parser.parse_args()
    wanted = page()
    if options.check:
        return int(PAGE.read_text() != wanted)
    PAGE.write_text(wanted)
    return 0
