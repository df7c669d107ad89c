"""ONNX Runtime as the reference: a model as its author wrote it, without optimisations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import onnx
import onnxruntime as ort

from collage.core.temporary import TemporaryFolder
from collage.frontend.ort_session import run_within, session_options, use_mapped_weights
from collage.frontend.read.apart import has_files, save_model
from collage.frontend.read.unsupported_dtypes import has_unsupported, plain_interface
from collage.frontend.rewrite.expand import expand

Run: TypeAlias = Callable[[Mapping[str, Any]], list[Any]]


def reference_run(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    """Outputs, in order, of one run on the inputs by name; see ``Reference``."""
    return Reference(model).run(feeds)


class Reference:
    """A model in ONNX Runtime without optimisations, loaded once for several runs.

    An operator that ONNX Runtime lacks is replaced by those that define it in the standard (see ``expand``).
    """

    def __init__(self, model: onnx.ModelProto, file: Path | None = None) -> None:
        """``file`` has the model, if there is one: then it need not be written once more."""
        self._model = model
        self._file = file
        self._run: Run | None = None

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Outputs, in order, for the inputs by name. Raises whatever ONNX Runtime does."""
        try:
            if self._run is None:
                self._run = _loaded(self._model, self._file)
            return self._run(feeds)
        except Exception:  # ONNX Runtime's exceptions share no base class but Exception
            expanded = expand(self._model)
            if expanded is self._model:
                raise
        self._model, self._run = expanded, _loaded(expanded)
        return self._run(feeds)


class PartSession:
    """A small model in ONNX Runtime, without optimisations and on one thread.

    Dtypes that ONNX Runtime does not exchange with numpy (bfloat16, float8) go through float32, which holds
    their values exactly.
    """

    def __init__(self, part: onnx.ModelProto) -> None:
        """Load the model, which is changed in place where it has such dtypes. Raises what ONNX Runtime raises."""
        self._plain = plain_interface(part)
        self._session = unoptimised_session(part, small=True)

    def run(self, feeds: Mapping[str, Any], limit_s: float = 60.0) -> list[Any]:
        """The outputs, in order, for inputs by name.

        Raises TimeoutError after ``limit_s`` seconds, and what ONNX Runtime raises.
        """
        return self._plain.run(lambda given: run_within(self._session, None, given, limit_s), feeds)


def _loaded(model: onnx.ModelProto, file: Path | None = None) -> Run:
    if has_unsupported(model):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        plain = plain_interface(copy)
        inner = partial(unoptimised_session(plain.model).run, None)
        return lambda feeds: plain.run(inner, feeds)
    session = unoptimised_session(model, file)
    return lambda feeds: list(session.run(None, dict(feeds)))


def unoptimised_session(
    model: onnx.ModelProto, file: Path | None = None, *, small: bool = False
) -> ort.InferenceSession:
    """A session on the model with all graph optimisations off. ``file`` has the model, if there is one.

    A ``small`` model fits into one protobuf, unless its weights are in files, and runs on one thread. Raises whatever
    ONNX Runtime does.
    """
    options = session_options()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if small:
        options.intra_op_num_threads = 1
        options.enable_cpu_mem_arena = False
    if has_files(model):
        use_mapped_weights(options)
    elif small:
        return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    if file is not None:
        return ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    with TemporaryFolder("session") as folder:
        path = folder / "model.onnx"
        save_model(model, path)
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
