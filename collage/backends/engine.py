"""What an engine is: a backend that takes whole ONNX models, as their authors wrote them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from collage.backends.base import Backend, BackendKind, UnsupportedError
from collage.graph.dataflow import Array
from collage.graph.storage import PLAIN, Storage
from collage.kernel.frames import Artifact
from collage.kernel.kernel import Session
from collage.kernel.model_artifact import model_artifact
from collage.kernel.options import DYNAMIC_INT8, BuildOptions, Variant

if TYPE_CHECKING:
    from onnx import ModelProto

    from collage.frontend.subgraph import Subgraph
    from collage.patterns.rules import MatchSource


_OF_MODELS = ("session", "codegen_model", "compile_onnx", "check_model", "load")
"""The methods that meet models or their artifacts."""


@dataclass(frozen=True)
class Layer:
    """A layer of an engine's own network, with its microseconds in a run.

    ``nodes`` are names of ONNX nodes that it is known to compute, perhaps not all, and ``reads`` the positions of
    layers whose values it takes.
    """

    kind: str
    us: float
    nodes: frozenset[str]
    reads: tuple[int, ...] = ()


class Engine(Backend):
    """A backend that takes whole models: as kernels if all shapes are known, and as sessions if they are not.

    One that takes nothing but whole models implements ``available``, ``codegen_model``, ``load``, and ``session`` if
    it can. One that also takes parts of models implements ``sources`` and ``codegen``, as any backend does.
    """

    kind = BackendKind.ENGINE
    own: ClassVar[bool] = False
    """Whether it is Collage's own, which comparisons with engines leave out."""
    takes_apart: ClassVar[bool] = False
    """Whether it takes models whose large weights are apart: to ``codegen_model`` as ONNX's external data in files of
    ``collage.frontend.read.weights``, and to ``session`` as artifacts of ``collage.kernel.model_artifact``. A subclass
    that overrides one of these says so again."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        says = next(each for each in cls.__mro__ if "takes_apart" in each.__dict__)
        if any(getattr(cls, name) is not getattr(says, name, None) for name in _OF_MODELS if hasattr(cls, name)):
            cls.takes_apart = False

    def codegen_model(self, model: ModelProto, options: BuildOptions) -> bytes:
        """Compile a whole ONNX model, of static shapes, to an artifact for ``load``. Raises like ``codegen``.

        The kernel's inputs and outputs are the model's, in its order, without inputs that are initializers.
        """
        raise UnsupportedError(_no_models(self))

    def session(self, model: Any, options: BuildOptions) -> Session:
        """Load a serialised ONNX model, whose shapes may depend on data.

        Raises UnsupportedError, or whatever the engine does with a model that it cannot take. By default it is the
        former, for all models.
        """
        raise UnsupportedError(
            f"{self.name} takes whole models as kernels only, with all shapes known, and runs none by itself"
        )

    def check_proto(self, model: ModelProto) -> None:
        """The same as ``check_model`` for a model that is parsed. Its weights are apart if it ``takes_apart``."""
        self.check_model(model.SerializeToString())

    def check_model(self, model: bytes) -> None:
        """Raises UnsupportedError for a model that ``session`` would load, but compute with too few bits.

        Such an engine is taken if no other runs the model. Any other exception refuses it for good: it would be
        unsafe to run.

        It is asked once, when a model is compiled; ``session`` does not ask again.
        """

    def layer_times(self, artifact: Artifact, inputs: Sequence[Array], options: BuildOptions) -> Sequence[Layer]:
        """The layers that a session on the artifact runs, with medians of some runs.

        Raises UnsupportedError if the engine has no profiler, as by default.
        """
        raise UnsupportedError(f"{self.name} has no profile by layers")

    def profiles(self, options: BuildOptions) -> Sequence[str]:
        """Names of the settings that are worth trying with a whole model; "", the usual ones, comes first.

        One of them is ``options.profile`` when the model is built and loaded.
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

        One of them is ``options.variant.precision`` when a model is built and loaded in it. There are none by default.
        """
        return ()

    def sources(self, options: BuildOptions) -> Sequence[MatchSource]:
        """The engine is offered no parts of models by default."""
        return ()

    def codegen(self, subgraph: Subgraph, options: BuildOptions) -> bytes:
        """Raises UnsupportedError by default."""
        raise UnsupportedError(f"{self.name} takes whole models only")


def as_engine(backend: Backend) -> Engine:
    """The backend, which has to be an engine. Raises UnsupportedError if it is none."""
    if not isinstance(backend, Engine):
        raise UnsupportedError(_no_models(backend))
    return backend


def artifact_for(engine: Engine, model: ModelProto, options: BuildOptions) -> bytes:
    """What the engine makes of a whole model (see ``codegen_model``), whose weights may be in files."""
    from collage.frontend.read.apart import filled

    return engine.codegen_model(model if engine.takes_apart else filled(model), options)


def prepared(engine: Engine, model: ModelProto, options: BuildOptions) -> bytes | None:
    """What a session of the engine is made of instead of the model, if its weights are quantised beforehand."""
    return artifact_for(engine, model, options) if options.variant.precision == DYNAMIC_INT8 else None


def session_on(engine: Engine, model: Artifact, options: BuildOptions) -> Session:
    """A session of the engine on an artifact of a model. Raises what ``session`` raises.

    An engine that takes whole models as kernels only gets a session of such a kernel.
    """
    from collage.frontend.engine_models import in_one_piece

    found = model_artifact(model)
    if type(engine).session is Engine.session and type(engine).codegen_model is not Engine.codegen_model:
        import onnx

        from collage.backends.kernel_session import KernelSession

        proto = onnx.load_model_from_string(in_one_piece(found))
        kernel = engine.load(engine.codegen_model(proto, options), options)
        return KernelSession(proto, kernel, engine.whole_storage().device)
    return engine.session(found if engine.takes_apart else in_one_piece(found), options)


def _no_models(backend: Backend) -> str:
    return f"{backend.name} takes no whole ONNX models"


def whole_variant(engine: Engine, subgraph: Subgraph, precision: str = "") -> Variant:
    """The variant of a whole model, ``subgraph``, on the engine in a precision."""
    storage = engine.whole_storage()
    if storage == PLAIN:
        return Variant(precision=precision)
    return Variant((storage,) * len(subgraph.inputs), (storage,) * len(subgraph.outputs), precision=precision)
