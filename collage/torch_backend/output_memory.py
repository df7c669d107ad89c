"""How a subgraph's outputs lie in memory: their strides, and which of them share it with inputs or with each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from collage.graph.torch_tensors import is_tensor
from collage.torch_backend.dynamo_graph import NotCompiledError


@dataclass(frozen=True)
class Fresh:
    """An output that a module makes, with these strides."""

    stride: tuple[int, ...]


@dataclass(frozen=True)
class Alias:
    """An output on the memory of an argument, or of another output, which is at this position."""

    of_output: bool
    position: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    """Elements from the beginning of the other tensor to that of the output."""


@dataclass(frozen=True)
class NoTensor:
    """An output that is no tensor."""

    value: Any


OutputMemory: TypeAlias = "Fresh | Alias | NoTensor"


def output_memory(args: Sequence[Any], outputs: Sequence[Any]) -> list[OutputMemory]:
    """How the outputs of a call in PyTorch lie in memory.

    Raises NotCompiledError for outputs that share a part of their memory, for views in another dtype, and for those of
    inputs that share memory, since other calls may have some that do not.
    """
    given: dict[int, list[int]] = {}
    for at, each in enumerate(args):
        if _has_memory(each):
            given.setdefault(_address(each), []).append(at)
    largest = sorted(range(len(outputs)), key=lambda at: -_elements(outputs[at]))
    found: dict[int, OutputMemory] = {}
    made: list[tuple[int, Any]] = []
    for at in largest:
        output = outputs[at]
        if not is_tensor(output):
            found[at] = NoTensor(output)
        elif _has_memory(output) and (owners := given.get(_address(output))):
            if len(owners) > 1:
                raise NotCompiledError("an output is a view of inputs that share memory.")
            found[at] = _alias_of(args[owners[0]], output, owners[0], of_output=False)
        else:
            whole = next((each for each in made if _is_within(output, each[1])), None)
            if whole is not None:
                found[at] = _alias_of(whole[1], output, whole[0], of_output=True)
            else:
                found[at] = Fresh(tuple(output.stride()))
                made.append((at, output))
    return [found[at] for at in range(len(outputs))]


def _alias_of(other: Any, output: Any, position: int, *, of_output: bool) -> Alias:
    if other.dtype != output.dtype:
        raise NotCompiledError("an output has the memory of another tensor, and another dtype.")
    offset = output.storage_offset() - other.storage_offset()
    return Alias(of_output, position, tuple(output.shape), tuple(output.stride()), offset)


def _is_within(output: Any, whole: Any) -> bool:
    """Whether an output's memory is a part of another one's. Raises NotCompiledError if they overlap otherwise."""
    import torch

    if not (_has_memory(output) and _has_memory(whole) and _address(output) == _address(whole)):
        return False
    if output.dtype != whole.dtype:
        raise NotCompiledError("two outputs share memory, and have different dtypes.")
    places = torch.arange(output.untyped_storage().nbytes() // output.element_size())
    inner, outer = (
        places.as_strided(each.shape, each.stride(), each.storage_offset()).reshape(-1) for each in (output, whole)
    )
    shared = torch.isin(inner, outer)
    if shared.any() and not shared.all():
        raise NotCompiledError("two outputs share a part of their memory.")
    return bool(shared.all())


def assembled(found: Sequence[OutputMemory], args: Sequence[Any], made: Sequence[Any]) -> list[Any]:
    """The outputs of a call, from the tensors that a module has made, in order."""
    outputs: list[Any] = [None] * len(found)
    values = iter(made)
    for at, each in enumerate(found):
        if isinstance(each, Fresh):
            outputs[at] = _laid_out(next(values), each.stride)
        elif isinstance(each, NoTensor):
            outputs[at] = each.value
    for at, each in enumerate(found):
        if isinstance(each, Alias):
            outputs[at] = _aliased(each, outputs[each.position] if each.of_output else args[each.position])
    return outputs


def _aliased(alias: Alias, other: Any) -> Any:
    if (alias.size, alias.stride, alias.offset) == (tuple(other.shape), tuple(other.stride()), 0):
        return other
    return other.as_strided(alias.size, alias.stride, other.storage_offset() + alias.offset)


def _laid_out(tensor: Any, stride: tuple[int, ...]) -> Any:
    """The tensor with these strides; axes with a stride of 0 repeat their first element."""
    import torch

    if tuple(tensor.stride()) == stride:
        return tensor
    once = tensor[tuple(slice(0, 1) if each == 0 else slice(None) for each in stride)]
    found = torch.empty_strided(once.shape, stride, dtype=tensor.dtype)
    found.copy_(once)
    return found.as_strided(tensor.shape, stride)


def _elements(value: Any) -> int:
    return int(value.numel()) if is_tensor(value) else 0


def _has_memory(value: Any) -> bool:
    return _elements(value) > 0


def _address(tensor: Any) -> int:
    found: int = tensor.untyped_storage().data_ptr()
    return found
