"""What an engine is: a backend that takes whole ONNX models, as their authors wrote them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from collage.backends.base import Backend, BackendKind, UnsupportedError
from collage.graph.storage import PLAIN, Storage
from collage.kernel.kernel import Session
from collage.kernel.options import BuildOptions, Variant

if TYPE_CHECKING:
    from onnx import ModelProto

    from collage.frontend.subgraph import Subgraph
    from collage.patterns.rules import MatchSource


class Engine(Backend):
    """A backend that takes whole models: as kernels where all shapes are known, and as sessions where they are not.

    One that takes nothing but whole models implements ``available``, ``codegen_model``, ``load``, and ``session`` where
    it can. One that also takes parts of models implements ``sources`` and ``codegen``, as any backend does.
    """

    kind = BackendKind.ENGINE

    def codegen_model(self, model: ModelProto, options: BuildOptions) -> bytes:
        """Compile a whole ONNX model, of static shapes, to an artifact for ``load``. Raises like ``codegen``.

        The kernel's inputs and outputs are the model's, in its order, without inputs that are initializers.
        """
        raise UnsupportedError(_no_models(self))

    def session(self, model: bytes, options: BuildOptions) -> Session:
        """Load a serialised ONNX model, whose shapes may depend on data.

        Raises UnsupportedError, or whatever the engine does with a model that it cannot take. By default it is the
        former, for all models.
        """
        raise UnsupportedError(
            f"{self.name} takes whole models as kernels only, with all shapes known, and runs none by itself"
        )

    def check_model(self, model: bytes) -> None:
        """Raises UnsupportedError for a model that ``session`` would load, but compute with too few bits.

        Such an engine is taken where no other runs the model. Any other exception refuses it for good: it would be
        unsafe to run.

        It is asked once, when a model is compiled; ``session`` does not ask again.
        """

    def profiles(self, options: BuildOptions) -> Sequence[str]:
        """Names of the settings that are worth trying with a whole model; "", the usual ones, comes first.

        One of them is ``options.profile`` where the model is built and loaded.
        """
        return ("",)

    def whole_storage(self) -> Storage:
        """Where the inputs and outputs of a whole model are stored: plain in the host's memory, by default.

        An engine on another device names that, so that copies are launches of their own.
        """
        return PLAIN

    def patience_s(self, profile: str) -> float:
        """The seconds that compiling a whole model may take beyond a candidate's time limit. 0 by default."""
        return 0.0

    def precisions(self, options: BuildOptions) -> Sequence[str]:
        """The reduced precisions, of ``options.precisions``, in which it runs whole models on this machine.

        One of them is ``options.variant.precision`` where a model is built and loaded in it. There are none by default.
        """
        return ()

    def sources(self, options: BuildOptions) -> Sequence[MatchSource]:
        """The engine is offered no parts of models by default."""
        return ()

    def codegen(self, subgraph: Subgraph, options: BuildOptions) -> bytes:
        """Raises UnsupportedError by default."""
        raise UnsupportedError(f"{self.name} takes whole models only")


def as_engine(backend: Backend) -> Engine:
    """The backend, which has to be an engine. Raises UnsupportedError where it is none."""
    if not isinstance(backend, Engine):
        raise UnsupportedError(_no_models(backend))
    return backend


def _no_models(backend: Backend) -> str:
    return f"{backend.name} takes no whole ONNX models"


def whole_variant(engine: Engine, subgraph: Subgraph, precision: str = "") -> Variant:
    """The variant of a whole model, ``subgraph``, on the engine in a precision."""
    storage = engine.whole_storage()
    if storage == PLAIN:
        return Variant(precision=precision)
    return Variant((storage,) * len(subgraph.inputs), (storage,) * len(subgraph.outputs), precision=precision)
