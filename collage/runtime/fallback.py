"""The original model in ONNX Runtime, for shapes that no placement was made for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from collage.core.library_text import library_text
from collage.errors import CollageError, InputError
from collage.graph.dataflow import Array, np_dtype
from collage.graph.given_array import MismatchError, given_array, given_texts
from collage.graph.value_type import STRING, TENSOR
from collage.kernel.frames import Artifact
from collage.kernel.options import BuildOptions
from collage.runtime.inputs import refuse_dtype
from collage.runtime.original import OriginalModel
from collage.schedule.program import Port
from collage.schedule.suffix import ValuePort


class Fallback:
    """Runs an artifact of an ONNX model whose inputs may have open dimensions. It is loaded on first use."""

    def __init__(
        self,
        model: Artifact,
        inputs: Sequence[Port | ValuePort],
        outputs: Sequence[Port | ValuePort],
        threads: int,
    ) -> None:
        """``inputs`` and ``outputs`` have the names and dtypes. Their shapes are those of a placement, and not used."""
        self._original = OriginalModel(model, BuildOptions(threads=threads))
        self._inputs, self._outputs = inputs, outputs

    @property
    def model(self) -> Artifact:
        """The model as an artifact."""
        return self._original.model

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Outputs by name for inputs by name, of any shapes that the model takes.

        Several threads may call it at the same time. Raises InputError for shapes or dtypes that it does not take.
        """
        arrays = {port.name: _checked(port, inputs[port.name]) for port in self._inputs}
        try:
            values = self._original.run(list(arrays.values()))
        except CollageError:
            raise
        except Exception as error:  # ONNX Runtime's exceptions share no base class but Exception
            text = library_text(error)
            shapes = ", ".join(
                f"{name}: {each.shape}" for name, each in arrays.items() if isinstance(each, np.ndarray)
            )
            raise InputError(f"the model does not run on inputs of shapes {shapes}: {text}") from error
        return dict(zip([port.name for port in self._outputs], values, strict=True))

    def tell_once(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` the first time only, so that a warning is given once."""
        self._original.tell_once(tell)


def _checked(port: Port | ValuePort, value: Any) -> Any:
    if isinstance(port, ValuePort) and port.type.kind != TENSOR:
        return value
    try:
        if port.type.dtype == STRING:
            return given_texts(value)
        wanted = np_dtype(port.type.dtype)
        array = given_array(value, wanted)
    except MismatchError as error:
        raise InputError(f"input {port.name} {error}.") from error
    refuse_dtype(port.name, array, wanted)
    return array
