"""The pattern language: TVM's dataflow patterns (``tvm.relax.dpl``) under short operator names.

``is_op("conv2d")(wildcard(), wildcard())`` matches a convolution; ``.has_attr({...})``, ``.has_dtype``, ``.has_shape``
and ``|`` work as in TVM. TVM is imported on first use, so that ``import collage`` stays fast.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from collage.errors import RegistrationError
from collage.patterns.names import canonical, relax_names


def is_op(name: str) -> Any:
    """A pattern of an operator, which is called with the patterns of its arguments.

    ``name`` is short (``conv2d``, ``dense``, ``relu``) or a full Relax name. Raises RegistrationError for a name that
    is no Relax operator.
    """
    from tvm.relax import dpl

    return dpl.is_op(relax_name(name))


def relax_name(name: str) -> str:
    """The full Relax name: ``relax.nn.conv2d`` for ``conv2d``. Raises RegistrationError for no operator."""
    from tvm.ir import Op

    known = set(Op.list_op_names())
    plain = canonical(name)
    for candidate in (name, f"relax.{plain}", f"relax.nn.{plain}", f"relax.image.{plain}"):
        if candidate in known and candidate.startswith("relax."):
            return candidate
    if of_onnx := relax_names(name):
        raise RegistrationError(f"{name!r} is ONNX's name; Relax's is {' or '.join(map(repr, of_onnx))}.")
    by_short = {canonical(n): n for n in known if n.startswith("relax.")}
    similar = [by_short[each] for each in get_close_matches(plain, by_short, n=5)]
    hint = f" Similar: {', '.join(similar)}." if similar else ""
    raise RegistrationError(f"{name!r} is no Relax operator.{hint}")


def check_arguments(pattern: Any) -> None:
    """Raise RegistrationError if a pattern gives an operator more arguments than it has: it would match nothing."""
    from tvm.ir import Op
    from tvm.relax import dpl

    waiting, seen = [pattern], set()
    while waiting:
        each = waiting.pop()
        if each in seen:
            continue
        seen.add(each)
        if isinstance(each, dpl.CallPattern):
            op = getattr(each.op, "expr", None)
            if isinstance(op, Op) and 0 < op.num_inputs < len(each.args):
                name = canonical(str(op.name))
                raise RegistrationError(
                    f"is_op({name!r}) has {len(each.args)} arguments; the operator takes {op.num_inputs} at most."
                )
            waiting.extend(each.args)
        else:
            parts = (getattr(each, name, None) for name in ("left", "right", "pattern", "tuple"))
            waiting.extend([*getattr(each, "fields", ()), *(part for part in parts if part is not None)])


def wildcard() -> Any:
    """A pattern that matches any tensor."""
    from tvm.relax import dpl

    return dpl.wildcard()


def is_const() -> Any:
    """A pattern that matches a constant."""
    from tvm.relax import dpl

    return dpl.is_const()


def is_tuple(fields: list[Any]) -> Any:
    """A pattern of a tuple of tensors, which is what ``concat`` reads."""
    from tvm.relax import dpl

    return dpl.is_tuple(fields)
