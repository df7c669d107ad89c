"""Programs of PyTorch as ONNX models, by PyTorch's own exporter, which is quiet about it."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import onnx

from collage.core.library_text import library_text
from collage.errors import ModelError
from collage.frontend.read.scopes import all_graphs

_OPERATION = re.compile(r"target=(?:torch\.ops\.)?([\w.]+)|OpOverload\(op='([\w.]+)'")
"""An operation in the exporter's messages."""


def exported(model: Any, args: Sequence[Any], kwargs: Mapping[str, Any], what: str) -> Any:
    """The ``torch.export.ExportedProgram`` of a module for such arguments, which takes their shapes.

    ``what`` names the module in messages. Raises ModelError.
    """
    import torch

    try:
        with _quiet(), _beside_threads(), _without_fused_attention(), torch.no_grad():
            return torch.export.export(model, tuple(args), dict(kwargs), strict=False)
    except Exception as error:  # tracing runs the module's code, which raises anything
        raise ModelError(f"PyTorch cannot export {what}: {_reason(error)}") from error


def to_onnx(program: Any, inputs: Sequence[str], outputs: Sequence[str], what: str) -> onnx.ModelProto:
    """The ONNX model of a ``torch.export.ExportedProgram``, with these names of its tensors, in order.

    Its nodes do not say which lines of the user's code they come from. Raises ModelError, which names the operation
    that has no ONNX form.
    """
    import torch

    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ModelError(
            f"{what} needs onnxscript, PyTorch's exporter to ONNX: pip install 'collage-compiler[torch]'."
        ) from error
    try:
        with _quiet(), _beside_threads():
            made = torch.onnx.export(
                program, dynamo=True, verbose=False, input_names=list(inputs), output_names=list(outputs)
            )
            model: onnx.ModelProto = made.model_proto
    except Exception as error:  # the exporter raises anything
        raise ModelError(f"PyTorch cannot write {what} as ONNX: {_reason(error)}") from error
    return without_notes(model)


def without_notes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, in place, without what the exporter notes in it: types, lines of code and folders."""
    del model.metadata_props[:]
    of_graphs = [(each, *each.input, *each.output, *each.initializer) for each in all_graphs(model.graph)]
    for message in (*chain.from_iterable(of_graphs), *model.functions):
        message.ClearField("doc_string")
        message.ClearField("metadata_props")
    for body in (*all_graphs(model.graph), *model.functions):
        for inner in (*body.node, *body.value_info):
            inner.ClearField("doc_string")
            inner.ClearField("metadata_props")
    return model


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings and logs of PyTorch and its exporter: what fails is told in one line."""
    loggers = [logging.getLogger(name) for name in ("torch", "onnxscript", "onnx_ir")]
    levels = [each.level for each in loggers]
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            for each in loggers:
                each.setLevel(logging.CRITICAL)
            yield
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)


@contextlib.contextmanager
def _beside_threads() -> Iterator[None]:
    """Within it no other thread traces with TorchDynamo, and compiled functions run in all of them.

    PyTorch's tracers note in globals what they do, and one that traces has others' compiled functions raise errors
    unless PyTorch says that it compiles.
    """
    import torch
    from torch._dynamo import convert_frame

    with convert_frame.compile_lock:
        before = torch.compiler._is_compiling_flag
        torch.compiler._is_compiling_flag = True
        try:
            yield
        finally:
            torch.compiler._is_compiling_flag = before


@contextlib.contextmanager
def _without_fused_attention() -> Iterator[None]:
    """Within it modules of transformers use plain operations, as in training: the fused ones have no ONNX form."""
    from torch.backends import mha

    before = mha.get_fastpath_enabled()
    try:
        mha.set_fastpath_enabled(False)
        yield
    finally:
        mha.set_fastpath_enabled(before)


def _reason(error: BaseException) -> str:
    """The failure in one line: an operation, if the exporter names one, or else the first error's first line."""
    errors = [error]
    while (cause := errors[-1].__cause__) is not None:
        errors.append(cause)
    for each in errors[::-1]:
        if type(each).__module__.startswith("torch.onnx") and (found := _OPERATION.search(str(each))):
            return f"it has no ONNX form of the operation {found[1] or found[2]}."
    first = next((line.strip() for line in str(errors[-1]).splitlines() if line.strip()), "")
    return library_text(f"{type(errors[-1]).__name__}: {first}".removesuffix(": "))
