"""Operators that move, choose or repeat elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collage.backends.base import UnsupportedError
from collage.backends.torch_graph.operator import Operator, Table, plain

__all__ = ["movement"]

_LINEAR = ("half_pixel", "pytorch_half_pixel", "align_corners")
"""The ways to choose coordinates between which PyTorch interpolates."""


def movement() -> Table:
    """The operators by name."""
    return {
        **plain(
            {
                "Transpose": _transposed,
                "Concat": _concatenated,
                "Flatten": _flattened,
                "Gather": _gathered,
                "GatherElements": _gathered_elements,
                "DepthToSpace": _depth_to_space,
                "SpaceToDepth": _space_to_depth,
            }
        ),
        "Reshape": Operator(_reshaped, numbers=(1,)),
        "Expand": Operator(_expanded, numbers=(1,)),
        "Squeeze": Operator(_squeezed, numbers=(1,)),
        "Unsqueeze": Operator(_unsqueezed, numbers=(1,)),
        "Split": Operator(_split, numbers=(1,)),
        "Slice": Operator(_sliced, numbers=(1, 2, 3, 4)),
        "Pad": Operator(_padded, numbers=(1, 2, 3)),
        "Tile": Operator(_tiled, numbers=(1,)),
        "Trilu": Operator(_triangle, numbers=(1,)),
        "Resize": Operator(_resized, numbers=(1, 2, 3)),
    }


def _transposed(x: Any, *, perm: Sequence[int] | None = None) -> Any:
    return x.permute(perm or list(range(x.dim()))[::-1])


def _concatenated(*values: Any, axis: int) -> Any:
    import torch

    return torch.cat(values, axis)


def _flattened(x: Any, *, axis: int = 1) -> Any:
    rows = 1
    for extent in x.shape[: axis + x.dim() if axis < 0 else axis]:
        rows *= extent
    return x.reshape(rows, -1 if x.numel() else x.numel() // max(rows, 1))


def _gathered(x: Any, indices: Any, *, axis: int = 0) -> Any:
    import torch

    axis %= x.dim()
    flat = indices.reshape(-1).long()
    flat = torch.where(flat < 0, flat + x.shape[axis], flat)
    shape = [*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]]
    return torch.index_select(x, axis, flat).reshape(shape)


def _gathered_elements(x: Any, indices: Any, *, axis: int = 0) -> Any:
    import torch

    indices = indices.long()
    return torch.gather(x, axis, torch.where(indices < 0, indices + x.shape[axis], indices))


def _depth_to_space(x: Any, *, blocksize: int, mode: str = "DCR") -> Any:
    n, c, h, w = x.shape
    b, depth = blocksize, c // blocksize**2
    if mode == "DCR":
        y = x.reshape(n, b, b, depth, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        y = x.reshape(n, depth, b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    return y.reshape(n, depth, h * b, w * b)


def _space_to_depth(x: Any, *, blocksize: int) -> Any:
    n, c, h, w = x.shape
    b = blocksize
    return x.reshape(n, c, h // b, b, w // b, b).permute(0, 3, 5, 1, 2, 4).reshape(n, c * b * b, h // b, w // b)


def _reshaped(x: Any, shape: Sequence[int], *, allowzero: int = 0) -> Any:
    kept = [x.shape[at] if each == 0 and not allowzero else each for at, each in enumerate(shape)]
    return x.reshape(kept)


def _expanded(x: Any, shape: Sequence[int]) -> Any:
    import torch

    return x.expand(torch.broadcast_shapes(tuple(x.shape), tuple(shape)))


def _squeezed(x: Any, given: Sequence[int] | None = None, *, axes: Sequence[int] | None = None) -> Any:
    wanted = given or axes
    return x.squeeze(tuple(wanted)) if wanted else x.squeeze()


def _unsqueezed(x: Any, given: Sequence[int] | None = None, *, axes: Sequence[int] | None = None) -> Any:
    wanted = given or axes or ()
    rank = x.dim() + len(wanted)
    for axis in sorted(each % rank for each in wanted):
        x = x.unsqueeze(axis)
    return x


def _split(
    x: Any,
    given: Sequence[int] | None = None,
    *,
    axis: int = 0,
    num_outputs: int = 0,
    split: Sequence[int] | None = None,
) -> Any:
    import torch

    sizes = given or split
    whole = x.shape[axis]
    return tuple(torch.split(x, list(sizes) if sizes else -(-whole // num_outputs), axis))


def _sliced(
    x: Any,
    starts_given: Sequence[int] | None = None,
    ends_given: Sequence[int] | None = None,
    axes_given: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
    *,
    axes: Sequence[int] | None = None,
    ends: Sequence[int] | None = None,
    starts: Sequence[int] | None = None,
) -> Any:
    begins, ends = starts_given or starts or (), ends_given or ends or ()
    along = axes_given or axes or range(len(begins))
    for axis, begin, end, step in zip(along, begins, ends, steps or [1] * len(begins), strict=True):
        extent = x.shape[axis]
        first, last, by = slice(begin, end, step).indices(extent)
        count = len(range(first, last, by))
        if by > 0:
            x = x.narrow(axis, min(first, extent), max(0, min(last, extent) - min(first, extent)) if count else 0)
            x = x[(slice(None),) * (axis % x.dim()) + (slice(None, None, by),)] if by > 1 else x
        else:
            x = x.narrow(axis, first + (count - 1) * by if count else 0, -(count - 1) * by + 1 if count else 0)
            x = x.flip(axis)
            x = x[(slice(None),) * (axis % x.dim()) + (slice(None, None, -by),)] if by < -1 else x
    return x


def _padded(
    x: Any,
    given: Sequence[int] | None = None,
    filled: Sequence[float] | None = None,
    axes: Sequence[int] | None = None,
    *,
    mode: str = "constant",
    pads: Sequence[int] | None = None,
    value: float = 0.0,
) -> Any:
    import torch

    ends = given or pads or ()
    along = [each % x.dim() for each in axes] if axes else list(range(len(ends) // 2))
    count = len(along)
    sides = [(0, 0)] * x.dim()
    for at, axis in enumerate(along):
        sides[axis] = ends[at], ends[count + at]
    if mode == "constant":
        flat = [each for pair in reversed(sides) for each in pair]
        return torch.nn.functional.pad(x, flat, value=filled[0] if filled else value)
    first = next((axis for axis, pair in enumerate(sides) if any(pair)), x.dim())
    named = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}[mode]
    if first < 2 or x.dim() > 5 or x.dim() < 3 or any(each < 0 for pair in sides for each in pair):
        raise UnsupportedError(f"padding of the mode {mode} along the first two axes")
    flat = [each for pair in reversed(sides[2:]) for each in pair]
    return torch.nn.functional.pad(x, flat, mode=named)


def _tiled(x: Any, repeats: Sequence[int]) -> Any:
    return x.repeat(tuple(repeats))


def _triangle(x: Any, k: Sequence[int] | None = None, *, upper: int = 1) -> Any:
    import torch

    return (torch.triu if upper else torch.tril)(x, k[0] if k else 0)


def _resized(
    x: Any,
    roi: Any = None,
    scales: Sequence[float] | None = None,
    sizes: Sequence[int] | None = None,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
    antialias: int = 0,
    axes: Sequence[int] | None = None,
    keep_aspect_ratio_policy: str = "stretch",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
) -> Any:
    """The forms that PyTorch has: nearest by asymmetric coordinates rounded down, and linear by half pixels."""
    import torch

    if axes or keep_aspect_ratio_policy != "stretch":
        raise UnsupportedError("resizing of some axes by their names, or in a fixed ratio")
    exact = [float(n * s) for n, s in zip(x.shape, scales, strict=True)] if scales else []
    if any(abs(each - round(each)) > 1e-5 for each in exact):
        raise UnsupportedError("resizing by scales that leave a part of a pixel")
    wanted = list(sizes) if sizes else [round(each) for each in exact]
    if wanted[:2] != list(x.shape[:2]) or antialias:
        raise UnsupportedError("resizing of other axes than those of an image")
    whole = all(new % old == 0 for old, new in zip(x.shape, wanted, strict=True))
    floored = coordinate_transformation_mode == "asymmetric" and nearest_mode == "floor"
    # Where the scales are whole numbers, rounding from the middle of a pixel gives the same.
    rounded = coordinate_transformation_mode == "half_pixel" and nearest_mode.startswith("round") and whole
    if mode == "nearest" and (floored or rounded):
        return torch.nn.functional.interpolate(x, wanted[2:], mode="nearest")
    kinds = {3: "linear", 4: "bilinear", 5: "trilinear"}
    if mode == "linear" and coordinate_transformation_mode in _LINEAR:
        corners = coordinate_transformation_mode == "align_corners"
        return torch.nn.functional.interpolate(x, wanted[2:], mode=kinds[x.dim()], align_corners=corners)
    raise UnsupportedError(f"resizing of the mode {mode} by {coordinate_transformation_mode}")
