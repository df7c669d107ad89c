"""Reading a chain as a product with a constant matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import Chain, Floats
from collage.backends.chains.epilogue import Epilogue, read_epilogue
from collage.backends.chains.fold import fold


@dataclass(frozen=True)
class NativeProduct:
    """``matrix`` is (K, N), ``scale`` has the factors of its columns, and ``bias`` the terms that follow."""

    data: int
    rows: int
    matrix: Floats
    scale: Floats | None
    bias: Floats | None
    epilogue: Epilogue

    @property
    def weights(self) -> Floats:
        """The matrix with the factors in it. It is computed on each use, since nobody but ``pack`` needs it."""
        return self.matrix if self.scale is None else self.matrix * self.scale

    @property
    def flop(self) -> int:
        """The number of floating-point operations."""
        return 2 * self.rows * self.matrix.size


def read_product(chain: Chain) -> NativeProduct:
    """The chain as a product. Raises UnsupportedError when it is none that the kernels take."""
    left, right = chain.root.inputs
    matrix = chain.constant(right)
    if matrix is None or matrix.ndim != 2:
        raise UnsupportedError("the right operand is no constant matrix")
    if chain.graph.is_constant(left):
        raise UnsupportedError("both operands are constants")
    shape = chain.type_of(chain.root.outputs[0]).shape
    folded = fold(chain, shape, len(shape) - 1)
    epilogue = read_epilogue(chain, folded.epilogue, shape)
    return NativeProduct(left, math.prod(shape[:-1]), matrix, folded.scale, folded.bias, epilogue)
