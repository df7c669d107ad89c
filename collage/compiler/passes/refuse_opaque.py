"""RefuseOpaque: a strict compile is an error where only engines run an ONNX node."""

from __future__ import annotations

from dataclasses import dataclass

from collage.backends.base import BackendKind
from collage.compiler.state import Compilation, Context
from collage.errors import ModelError


@dataclass(frozen=True)
class RefuseOpaque:
    """Looks for nodes that TVM's importer could not convert, and that no library offers a kernel for."""

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """The compilation as it is. Raises ModelError for such nodes in a strict compile."""
        model = compilation.imported
        if not context.options.strict or not model.opaque:
            return compilation
        requests = (offer.request for offer in compilation.offers)
        taken = {
            model.graph.nodes[node].source
            for request in requests
            if context.backends[request.backend].kind is not BackendKind.ENGINE
            for node in request.nodes
        }
        nodes = model.onnx.graph.node
        left = {i: why for i, why in model.opaque.items() if i not in taken}
        if left:
            listing = "; ".join(f"{nodes[i].name} ({nodes[i].op_type}): {why}" for i, why in left.items())
            raise ModelError(
                f"strict: {len(left)} ONNX nodes are not converted, and only engines run them: {listing}"
            )
        return compilation
