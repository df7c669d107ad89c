"""Which subgraphs MKL is offered."""

from __future__ import annotations

from typing import ClassVar

from collage.backends.chains.product_rule import ProductRule
from collage.backends.mkl_kernels.plan import variants
from collage.backends.mkl_kernels.task import ROOTS, task_of
from collage.frontend.subgraph import Subgraph


class MklRule(ProductRule):
    """Finds products with their epilogues, and pointwise convolutions."""

    library: ClassVar[str] = "MKL"
    roots: ClassVar[frozenset[str]] = ROOTS

    def take(self, subgraph: Subgraph) -> object:
        """Read the product and its variants. Raises UnsupportedError where MKL has none."""
        return variants(task_of(subgraph), 1)
