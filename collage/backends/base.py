"""What a backend is: a name, whether it is here, the patterns it takes, and how it makes a kernel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from collage.graph.formats import StorageFormat
from collage.graph.storage import FORMATS, HOST
from collage.kernel.kernel import Kernel, Session
from collage.kernel.options import ALL_PLAIN, BuildOptions, Variant
from collage.kernel.transform import FormatKernel, LayoutTransform, read_transform, transform_artifact

if TYPE_CHECKING:
    from onnx import ModelProto

    from collage.frontend.subgraph import Subgraph
    from collage.patterns.rules import MatchSource

VIEW = "view"
"""Name of the built-in backend for operators that do no work; the memory plan and the search know it."""

LAYOUT = "layout"
"""Name of the built-in backend whose kernels bring a value to another built-in format between two other kernels."""

BUILT_IN = frozenset({VIEW, LAYOUT})
"""Backends that are always there, and that nobody names."""

NOT_EXACT = "reassociates, and exact algorithms are asked for"
"""Why what ``BuildOptions.exact`` leaves out has no candidate."""

TRIAL_LIMIT_S = 5.0
"""Seconds that ``Backend.tune`` may take for each trial; past that the candidate may be rejected."""


class BackendKind(Enum):
    """Operator libraries and compilers run kernels; graph engines also optimise across them (§2.2)."""

    LIBRARY = "operator library"
    COMPILER = "compiler"
    ENGINE = "graph engine"


@dataclass(frozen=True)
class Availability:
    """Whether a backend can be used here: its library's version, or the reason why not and what to install."""

    version: str = ""
    reason: str = ""

    def __bool__(self) -> bool:
        return not self.reason


class UnsupportedError(Exception):
    """Raised by ``codegen``: the backend does not take this subgraph; the message says why."""


class Backend(ABC):
    """A kernel library, compiler or engine. Instances hold no mutable state and can be pickled.

    A third party subclasses it in about 100 lines and registers an instance with ``collage.register_backend``
    or through the entry-point group ``collage.backends``.
    """

    name: ClassVar[str]
    """Lower-case identifier, as given to ``--backends``."""
    kind: ClassVar[BackendKind]

    @abstractmethod
    def available(self) -> Availability:
        """Probe for the library, once and cheaply; must not raise."""

    @abstractmethod
    def sources(self, options: BuildOptions) -> Sequence[MatchSource]:
        """Patterns and pattern rules: which subgraphs the backend is offered (§2.3)."""

    def variants(self, subgraph: Subgraph, options: BuildOptions) -> Sequence[Variant]:
        """The ways in which it can run the subgraph, each a candidate of its own; all plain by default."""
        return (ALL_PLAIN,)

    def formats(self) -> Sequence[StorageFormat]:
        """Storage formats that it adds to the built-in ones; ``variants`` may take and give values in them.

        Their names must be nobody else's. None by default.
        """
        return ()

    def transforms(self, transform: LayoutTransform) -> bool:
        """Whether it makes that layout transform, as a kernel between two others.

        By default those in the host's memory that begin or end in a format of its own. A backend that has storages on
        another device says here that it copies there and back.
        """
        ends = transform.source, transform.target
        own = self.formats()
        return (
            any(end.format in own for end in ends)
            and all(end.format in (*FORMATS, *own) for end in ends)
            and all(end.device == HOST for end in ends)
        )

    def codegen_transform(self, transform: LayoutTransform, options: BuildOptions) -> bytes:
        """An artifact of the transform for ``load_transform``. Raises like ``codegen``."""
        return transform_artifact(transform)

    def load_transform(self, artifact: Any, options: BuildOptions) -> Kernel:
        """Make the kernel of a layout transform: of one input and one output, which are stored as it says.

        By default one that calls the formats' own functions, in numpy. A backend that has a faster kernel implements
        this method and ``codegen_transform``.
        """
        return FormatKernel(read_transform(artifact, (*FORMATS, *self.formats())))

    def in_place(self, subgraph: Subgraph) -> Sequence[int]:
        """Positions of inputs that its kernels, of whatever variant, may overwrite with the one output.

        The memory plan then gives both the same buffer where nobody reads the input afterwards. None by default.
        """
        return ()

    def reassociates(self, subgraph: Subgraph, variant: Variant) -> bool:
        """Whether that variant's algorithm forms sums that the operators' definition does not form. False by default.

        Such sums are of different rows, columns or pixels, or of their products, as in Winograd's and Strassen's
        algorithms; what is small loses digits then beside what is large. The same sum in another order is not
        meant. The report marks such regions, and ``BuildOptions.exact`` leaves them out.
        """
        return False

    def tunes(self, subgraph: Subgraph) -> bool:
        """Whether ``tune`` searches for this subgraph; else its kernels do not depend on ``tune_trials``."""
        return False

    def tune(self, subgraph: Subgraph, options: BuildOptions) -> str:
        """Search for the best kernel in ``options.tune_trials`` trials; called before ``codegen``, once.

        What it returns is kept with the measurement and comes back as ``options.tuning``, in this or another
        process, so that ``codegen`` builds the kernel that was found without searching again. Raises
        like ``codegen``.
        """
        return ""

    @abstractmethod
    def codegen(self, subgraph: Subgraph, options: BuildOptions) -> bytes:
        """Compile the subgraph to an artifact that ``load`` understands, in this or another process.

        What is measured is what ships, also where it shall spin and did not when it was measured: the artifact must
        not depend on ``options.exclusive``, which is for ``load`` alone.
        Raises UnsupportedError for a subgraph it does not take; any other exception is a failed candidate.
        """

    @abstractmethod
    def load(self, artifact: Any, options: BuildOptions) -> Kernel:
        """Make the kernel of an artifact; needs neither the model nor TVM's compiler.

        ``artifact`` is the bytes that ``codegen`` gave. One that was made by ``collage.kernel.frames.frame`` may also
        come as ``Framed``, with arrays that lie in the mapped module file.
        """

    def session(self, model: bytes, options: BuildOptions) -> Session:
        """Load a serialised ONNX model whole, as its author wrote it; graph engines do.

        Raises UnsupportedError, or whatever the engine does with a model that it cannot take.
        """
        raise UnsupportedError(f"{self.name} takes no whole ONNX models")

    def check_model(self, model: bytes) -> None:  # noqa: B027 (most have nothing to say)
        """Raises UnsupportedError for a model that ``session`` would load, but compute with too few bits.

        Such an engine is taken where no other runs the model. Any other exception refuses it for good: it would be
        unsafe to run.

        It is asked once, when a model is compiled; ``session`` does not ask again.
        """

    def takes_models(self) -> bool:
        """Whether ``codegen_model`` takes ONNX models as their authors wrote them."""
        return False

    def codegen_model(self, model: ModelProto, options: BuildOptions) -> bytes:
        """Compile a whole ONNX model, of static shapes, to an artifact for ``load``. Raises like ``codegen``.

        The kernel's inputs and outputs are the model's, in its order, without inputs that are initializers.
        """
        raise UnsupportedError(f"{self.name} takes no whole ONNX models")

    def profiles(self, options: BuildOptions) -> Sequence[str]:
        """Names of the settings that are worth trying with a whole model; "", the usual ones, first.

        One of them is ``options.profile`` where it is built and loaded.
        """
        return ("",)

    def on_team(self) -> bool:
        """Whether its kernels run on Collage's own team of threads (``collage.native.NativeKernel``).

        Then a launch costs nothing beside the kernel itself; other kernels pay a context switch (Eq. 2.2).
        """
        return False

    def settings(self, options: BuildOptions) -> str:
        """What beside version and threads changes the speed of its kernels; part of the measurement's key.

        ``options.tune_trials`` is 0 here for subgraphs that it does not tune.
        """
        return ""
