"""What a backend is: a name, whether it is here, the patterns it takes, and how it makes kernels.

An engine that takes whole models is a `collage.backends.engine.Engine`, too. A backend that searches for its kernels is
a `collage.backends.tuner.Tuner`, too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from collage.graph.formats import StorageFormat
from collage.graph.storage import FORMATS, HOST
from collage.kernel.kernel import Kernel
from collage.kernel.options import ALL_PLAIN, BuildOptions, Variant
from collage.kernel.transform import FormatKernel, LayoutTransform, read_transform, transform_artifact

if TYPE_CHECKING:
    from collage.frontend.subgraph import Subgraph
    from collage.patterns.rules import MatchSource

VIEW = "view"
"""Name of the built-in backend for operators that do no work. The memory plan and the search know it."""

LAYOUT = "layout"
"""Name of the built-in backend whose kernels bring a value to another built-in format between two other kernels."""

BUILT_IN = frozenset({VIEW, LAYOUT})
"""Backends that are always there, and that nobody names."""

NOT_DIRECT = "reassociates, and direct algorithms are asked for"
"""The reason why there is no candidate for what ``BuildOptions.direct`` leaves out."""


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


DRAWS = "the model draws random numbers, which is left to ONNX Runtime"
"""Why a backend gets no operators that draw."""


class UnsupportedError(Exception):
    """Raised by ``codegen`` for a subgraph that the backend does not take. The message says why."""


class Backend(ABC):
    """A kernel library, compiler or engine. Instances hold no mutable state and can be pickled.

    A third party subclasses it in about 100 lines and registers an instance with ``collage.register_backend``
    or through the entry-point group ``collage.backends``.
    """

    # What every backend has

    name: ClassVar[str]
    """Lower-case identifier, as given to ``--backends``."""
    kind: ClassVar[BackendKind]
    device: ClassVar[str] = HOST
    """The device that its kernels compute on. A compile for the CPU alone leaves out all others."""
    ahead_s: ClassVar[float] = 0.1
    """About how many seconds of a core ``codegen`` takes. Other processes may do it while kernels are measured.

    They must not if it is 0, as for a ``codegen`` that computes on a GPU.
    """
    worker_imports: ClassVar[tuple[str, ...]] = ()
    """Modules that a worker imports for its first kernel of the backend. One process imports them for all workers."""
    keeps_nan: ClassVar[bool] = False
    """Whether kernels keep NaN, also NaN that they make inside of themselves; ``exact`` compiles use no others."""
    draws: ClassVar[bool] = False
    """Whether it draws random numbers as ONNX says. Others get no operators that do."""
    untried: ClassVar[str] = ""
    """What of it has never been tried, for the list of backends: the end of a sentence that begins with its name."""

    @abstractmethod
    def available(self) -> Availability:
        """Probe for the library, once and cheaply. It must not raise."""

    def misfit(self, version: str, same_cpu: bool) -> str:
        """The version or reason here for which kernels of a module file do not run, or "" if they do.

        They were made with a ``version`` of the library, for a CPU with the same instruction sets if ``same_cpu``. By
        default both have to be equal. A backend is more lenient if its artifacts are, or if ``load`` checks them.
        """
        here = self.available()
        if not here:
            return here.reason
        if here.version != version:
            return here.version
        return "" if same_cpu else "other instruction sets"

    def settings(self, options: BuildOptions) -> str:
        """What besides version and threads changes the speed of its kernels. It is part of a measurement's key.

        ``options.tune_trials`` is 0 here for subgraphs that it does not tune.
        """
        return ""

    # Which kernels it has

    @abstractmethod
    def sources(self, options: BuildOptions) -> Sequence[MatchSource]:
        """Patterns and pattern rules that find the subgraphs which the backend is offered (§2.3)."""

    def variants(self, subgraph: Subgraph, options: BuildOptions) -> Sequence[Variant]:
        """The ways in which it can run the subgraph, each a candidate of its own. By default all values are plain."""
        return (ALL_PLAIN,)

    def in_place(self, subgraph: Subgraph) -> Sequence[int]:
        """Positions of inputs that its kernels, of whatever variant, may overwrite with the one output.

        The memory plan then gives both the same buffer where nobody reads the input afterwards. There are none by
        default.
        """
        return ()

    def reassociates(self, subgraph: Subgraph, variant: Variant) -> bool:
        """Whether that variant's algorithm forms sums that the operators' definition does not form. False by default.

        Such sums are of different rows, columns or pixels, or of their products, as in Winograd's
        algorithm; what is small loses digits then beside what is large. The same sum in another order is not
        meant. The report marks such regions, and ``BuildOptions.direct`` leaves them out.
        """
        return False

    def on_team(self) -> bool:
        """Whether its kernels run on Collage's own team of threads (``collage.native.NativeKernel``).

        Then a launch costs nothing besides the kernel itself. Other kernels pay a context switch (Eq. 2.2).
        """
        return False

    def pays_switch(self) -> bool:
        """Whether a launch costs a context switch, as one does whose threads are not the team's."""
        return not self.on_team()

    # How it makes them

    @abstractmethod
    def codegen(self, subgraph: Subgraph, options: BuildOptions) -> bytes:
        """Compile the subgraph to an artifact that ``load`` understands, in this or another process.

        The artifact that is measured is the one that ships, also if idle threads shall spin and did not when it
        was measured. So it must not depend on ``options.exclusive``, which is for ``load`` alone.
        Raises UnsupportedError for a subgraph that it does not take; any other exception is a failed candidate.
        """

    @abstractmethod
    def load(self, artifact: Any, options: BuildOptions) -> Kernel:
        """Make the kernel of an artifact. This needs neither the model nor TVM's compiler.

        ``artifact`` is the bytes that ``codegen`` gave. One that was made by ``collage.kernel.frames.frame`` may also
        come as ``Framed``, with arrays that lie in the mapped module file.
        """

    # Storages of its own

    def formats(self) -> Sequence[StorageFormat]:
        """Storage formats that it adds to the built-in ones; ``variants`` may take and give values in them.

        No other format may have their names. There are none by default.
        """
        return ()

    def transforms(self, transform: LayoutTransform) -> bool:
        """Whether it makes that layout transform, as a kernel between two others.

        By default it makes those in the host's memory that begin or end in a format of its own. A backend that has
        storages on another device says here that it copies there and back.
        """
        ends = transform.source, transform.target
        own = self.formats()
        return (
            any(end.format in own for end in ends)
            and all(end.format in (*FORMATS, *own) for end in ends)
            and all(end.device == HOST for end in ends)
        )

    def codegen_transform(self, transform: LayoutTransform, options: BuildOptions) -> bytes:
        """An artifact of the transform for ``load_transform``. Raises like ``Backend.codegen``."""
        return transform_artifact(transform)

    def load_transform(self, artifact: Any, options: BuildOptions) -> Kernel:
        """Make the kernel of a layout transform, with one input and one output, which are stored as it says.

        By default it is one that calls the formats' own functions, in numpy. A backend that has a faster kernel
        implements this method and ``codegen_transform``.
        """
        return FormatKernel(read_transform(artifact, (*FORMATS, *self.formats())))
