"""Which subgraphs cuBLASLt is offered."""

from __future__ import annotations

from typing import ClassVar

from collage.backends.chains.product_rule import ProductRule
from collage.backends.cublas_kernels.task import ROOTS, task_of
from collage.frontend.subgraph import Subgraph


class CublasRule(ProductRule):
    """Finds products with what cuBLASLt's epilogues do."""

    library: ClassVar[str] = "cuBLASLt"
    roots: ClassVar[frozenset[str]] = ROOTS

    def take(self, subgraph: Subgraph) -> object:
        """Read the product. Raises UnsupportedError where it is none for cuBLASLt."""
        return task_of(subgraph)
