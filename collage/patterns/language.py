"""The pattern language: TVM's dataflow patterns (``tvm.relax.dpl``) under short operator names.

``is_op("conv2d")(wildcard(), wildcard())`` matches a convolution; ``.has_attr({...})``, ``.has_dtype``,
``.has_shape`` and ``|`` work as in TVM. TVM is imported on first use, to keep ``import collage`` light.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from collage.errors import RegistrationError
from collage.patterns.names import canonical


def is_op(name: str) -> Any:
    """Pattern of an operator, to be called with the patterns of its arguments.

    ``name`` is short (``conv2d``, ``dense``, ``relu``) or a full Relax name. Raises RegistrationError for a
    name that is no Relax operator.
    """
    from tvm.relax import dpl

    return dpl.is_op(relax_name(name))


def relax_name(name: str) -> str:
    """The full Relax name of an operator: ``conv2d`` → ``relax.nn.conv2d``."""
    from tvm.ir import Op

    known = set(Op.list_op_names())
    plain = canonical(name)
    for candidate in (name, f"relax.{plain}", f"relax.nn.{plain}", f"relax.image.{plain}"):
        if candidate in known and candidate.startswith("relax."):
            return candidate
    by_short = {canonical(n): n for n in known if n.startswith("relax.")}
    similar = [by_short[each] for each in get_close_matches(plain, by_short, n=5)]
    hint = f" Similar: {', '.join(similar)}." if similar else ""
    raise RegistrationError(f"{name!r} is no Relax operator.{hint}")


def wildcard() -> Any:
    """Pattern that matches any tensor."""
    from tvm.relax import dpl

    return dpl.wildcard()


def is_const() -> Any:
    """Pattern that matches a constant."""
    from tvm.relax import dpl

    return dpl.is_const()


def is_tuple(fields: list[Any]) -> Any:
    """Pattern of a tuple of tensors, as ``concat`` takes."""
    from tvm.relax import dpl

    return dpl.is_tuple(fields)
