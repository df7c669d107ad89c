"""A match as our own kernels see it: an operator and its epilogue, in the forms that algorithms take."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from collage.backends.chains.chain import Chain, read_chain
from collage.backends.chains.conv import Conv, conv_of
from collage.backends.chains.fold import Folded, fold
from collage.backends.native_kernels.convolution import NativeConvolution, read_convolution
from collage.backends.native_kernels.product import NativeProduct, read_product
from collage.frontend.subgraph import Subgraph


@dataclass(frozen=True)
class NativeTask:
    """A chain, and the operator that it begins with. Every form of it is read on first use, and then kept.

    ``conv`` is None for what is no convolution.
    """

    chain: Chain
    conv: Conv | None

    @cached_property
    def folded(self) -> Folded:
        """The chain of a convolution with its linear part split off."""
        assert self.conv is not None
        return fold(self.chain, self.conv.dst, 1)

    @cached_property
    def convolution(self) -> NativeConvolution:
        """The chain as a convolution. Raises UnsupportedError when there is more to it."""
        assert self.conv is not None
        return read_convolution(self.chain, self.conv, self.folded)

    @cached_property
    def product(self) -> NativeProduct:
        """The chain as a product with a constant matrix. Raises UnsupportedError when it is none."""
        return read_product(self.chain)

    def numbers_of(self, product: NativeProduct) -> dict[str, Any]:
        """What kernels of products store of the epilogue, and of where the operands are. Artifacts keep this order."""
        epilogue = product.epilogue
        return {
            "activation": epilogue.activation,
            "residual_first": epilogue.residual_first,
            "low": epilogue.low,
            "high": epilogue.high,
            "data": self.place(product.data),
            "residual": self.place(epilogue.residual),
        }

    def place(self, value: int | None) -> int | None:
        """The position of a value among the subgraph's inputs."""
        return None if value is None else self.chain.inputs.index(value)


def read_task(subgraph: Subgraph) -> NativeTask:
    """The subgraph as a task. Raises UnsupportedError when it is none."""
    chain = subgraph.parsed(read_chain)
    return NativeTask(chain, conv_of(subgraph) if chain.root.op.startswith("nn.conv") else None)
