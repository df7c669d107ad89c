"""PyTorch's settings of how products and convolutions of float32 are computed, set and set back.

There are two interfaces, an old one and one with a setting for each backend and operator (``fp32_precision``), and
PyTorch raises an error where it is asked for the old one and they contradict each other. So both are set here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["whole_float32"]

_ABOVE = (("generic", "all"), ("cuda", "all"), ("mkldnn", "all"))
"""Settings for all operators, the first one for all backends. Those below that are "none" take them over."""
_OF_OPERATORS = tuple((backend, op) for backend in ("cuda", "mkldnn") for op in ("matmul", "conv", "rnn"))

_NONE, _WHOLE, _TF32 = "none", "ieee", "tf32"


@contextmanager
def whole_float32() -> Iterator[None]:
    """Inside, products and convolutions of float32 are computed in float32. Afterwards all is as it was."""
    import torch

    read, write = torch._C._get_fp32_precision_getter, torch._C._set_fp32_precision_setter
    shown = {at: read(*at) for at in _OF_OPERATORS}
    found = {}
    for at in (*_ABOVE, *_OF_OPERATORS):  # each is read when nothing is above it
        found[at] = read(*at)
        write(*at, _NONE if at in _ABOVE else _WHOLE)
    for at in _OF_OPERATORS:
        if found[at] != shown[at]:  # cuDNN's default, which gives way to all that is above it
            found[at] = _NONE
    products, convolutions = torch.get_float32_matmul_precision(), _cudnn_has_tf32()
    torch.set_float32_matmul_precision("highest")
    torch._C._set_cudnn_allow_tf32(False)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch._C._set_cudnn_allow_tf32(convolutions)
        for at, value in reversed(found.items()):
            write(*at, value)


def _cudnn_has_tf32() -> bool:
    """What the old interface says of cuDNN. It can be asked where both operators of the new one say the same."""
    import torch

    for op in ("conv", "rnn"):
        torch._C._set_fp32_precision_setter("cuda", op, _TF32)
    try:
        return bool(torch._C._get_cudnn_allow_tf32())
    except RuntimeError:
        return False
