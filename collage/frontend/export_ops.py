"""The table of makers: each writes the ONNX nodes of a family of Relax operators.

A maker takes a ``Call`` and returns the names of its results, or raises ``InexpressibleError``. The nodes are valid
from operator set 18 on. Most of them are valid from 13 on, and ``Call.need_opset`` guards the others.
"""

from __future__ import annotations

from collections.abc import Mapping

from collage.frontend.export_compute import COMPUTE
from collage.frontend.export_data import DATA
from collage.frontend.export_elementwise import ELEMENTWISE
from collage.frontend.export_emit import Call, InexpressibleError, Maker

MAKERS: Mapping[str, Maker] = {**ELEMENTWISE, **COMPUTE, **DATA}
"""The makers by Relax name (without ``relax.``)."""


def make(c: Call) -> None:
    """Write the operator's ONNX nodes. Raises InexpressibleError."""
    c.finish(_maker(c.node.op)(c))


def _maker(op: str) -> Maker:
    if op in MAKERS:
        return MAKERS[op]
    if op.startswith("onnx."):
        raise InexpressibleError(
            "TVM's importer cannot convert it, so it only goes back as a whole ONNX node"
        )
    if op.startswith("call_"):
        raise InexpressibleError("it is a loop nest without a name")
    raise InexpressibleError("there is no rule for it")
