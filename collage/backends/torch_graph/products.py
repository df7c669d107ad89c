"""Products, convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collage.backends.base import UnsupportedError
from collage.backends.torch_graph.operator import Table, plain

__all__ = ["products"]


def products() -> Table:
    """The operators by name."""
    import torch

    return plain(
        {
            "MatMul": torch.matmul,
            "Gemm": _gemm,
            "Einsum": _einsum,
            "Conv": _convolution,
            "ConvTranspose": _transposed_convolution,
            "MaxPool": _max_pool,
            "AveragePool": _average_pool,
            "GlobalAveragePool": _global_average_pool,
            "GlobalMaxPool": _global_max_pool,
        }
    )


def _gemm(
    a: Any,
    b: Any,
    c: Any = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,  # noqa: N803
    transB: int = 0,  # noqa: N803
) -> Any:
    import torch

    a, b = (a.t() if transA else a), (b.t() if transB else b)
    if c is None:
        return torch.mm(a, b) * alpha if alpha != 1 else torch.mm(a, b)
    return torch.addmm(c, a, b, beta=beta, alpha=alpha)


def _einsum(*values: Any, equation: str) -> Any:
    import torch

    return torch.einsum(equation.replace(" ", ""), *values)


def _pads(
    x: Any,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    auto_pad: str,
    pads: Sequence[int] | None,
) -> list[tuple[int, int]]:
    """What is added before and after each axis of an image."""
    axes = len(kernel)
    if auto_pad in ("", "NOTSET"):
        given = pads or [0] * (2 * axes)
        return list(zip(given[:axes], given[axes:], strict=True))
    if auto_pad == "VALID":
        return [(0, 0)] * axes
    found = []
    for extent, size, stride, dilation in zip(x.shape[2:], kernel, strides, dilations, strict=True):
        whole = max(0, (-(-extent // stride) - 1) * stride + dilation * (size - 1) + 1 - extent)
        less, more = whole // 2, whole - whole // 2
        found.append((less, more) if auto_pad == "SAME_UPPER" else (more, less))
    return found


def _padded(x: Any, pads: Sequence[tuple[int, int]], value: float = 0.0) -> Any:
    import torch

    flat = [each for pair in reversed(pads) for each in pair]
    return torch.nn.functional.pad(x, flat, value=value) if any(flat) else x


def _convolution(
    x: Any,
    w: Any,
    b: Any = None,
    *,
    auto_pad: str = "",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    import torch

    kernel = w.shape[2:]
    axes = len(kernel)
    strides, dilations = strides or [1] * axes, dilations or [1] * axes
    ends = _pads(x, kernel, strides, dilations, auto_pad, pads)
    even = all(before == after for before, after in ends)
    run = (torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d)[axes - 1]
    inside = [before for before, _ in ends] if even else [0] * axes
    return run(x if even else _padded(x, ends), w, b, strides, inside, dilations, group)


def _transposed_convolution(
    x: Any,
    w: Any,
    b: Any = None,
    *,
    auto_pad: str = "",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    import torch

    if auto_pad not in ("", "NOTSET"):
        raise UnsupportedError(f"a transposed convolution with auto_pad {auto_pad}")
    axes = w.dim() - 2
    strides, dilations, more = strides or [1] * axes, dilations or [1] * axes, output_padding or [0] * axes
    ends = _pads(x, w.shape[2:], strides, dilations, "", pads)
    functional = torch.nn.functional
    run = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)[axes - 1]
    even = all(before == after for before, after in ends)
    inside = [before for before, _ in ends] if even else [0] * axes
    y = run(x, w, b, strides, inside, more, group, dilations)
    if not even:
        for axis, (before, after) in enumerate(ends, 2):
            y = y.narrow(axis, before, y.shape[axis] - before - after)
    return y


def _max_pool(
    x: Any,
    *,
    auto_pad: str = "",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    storage_order: int = 0,
    strides: Sequence[int] | None = None,
) -> Any:
    import torch

    axes = len(kernel_shape)
    strides, dilations = strides or [1] * axes, dilations or [1] * axes
    ends = _pads(x, kernel_shape, strides, dilations, auto_pad, pads)
    functional = torch.nn.functional
    run = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)[axes - 1]
    inside = [before for before, _ in ends]
    if any(a != b or 2 * a > size for (a, b), size in zip(ends, kernel_shape, strict=True)):
        if ceil_mode:
            raise UnsupportedError("pooling with uneven padding, rounded up")
        x, inside = _padded(x, ends, float("-inf")), [0] * axes
    return run(x, kernel_shape, strides, inside, dilations, bool(ceil_mode))


def _average_pool(
    x: Any,
    *,
    auto_pad: str = "",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    import torch

    axes = len(kernel_shape)
    strides, dilations = strides or [1] * axes, dilations or [1] * axes
    if any(each != 1 for each in dilations):
        raise UnsupportedError("average pooling with dilations")
    ends = _pads(x, kernel_shape, strides, dilations, auto_pad, pads)
    functional = torch.nn.functional
    run = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)[axes - 1]
    if all(a == b and 2 * a <= size for (a, b), size in zip(ends, kernel_shape, strict=True)):
        inside = [before for before, _ in ends]
        return run(x, kernel_shape, strides, inside, bool(ceil_mode), bool(count_include_pad))
    if ceil_mode:
        raise UnsupportedError("pooling with uneven padding, rounded up")
    y = run(_padded(x, ends), kernel_shape, strides)
    if count_include_pad:
        return y
    ones = torch.ones((1, 1, *x.shape[2:]), dtype=x.dtype, device=x.device)
    return y / run(_padded(ones, ends), kernel_shape, strides)


def _global_average_pool(x: Any) -> Any:
    return x.mean(dim=list(range(2, x.dim())), keepdim=True)


def _global_max_pool(x: Any) -> Any:
    return x.amax(dim=list(range(2, x.dim())), keepdim=True)
