"""The bench: what a compile measures and runs with. It is built once, and asking it changes nothing but the ledger."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import cached_property
from typing import TypeAlias

import onnx

from collage.backends.base import VIEW
from collage.check.accuracy import Accuracy
from collage.check.final_check import FinalCheck
from collage.compiler.assemble import Assembler
from collage.compiler.clock import Clock
from collage.compiler.import_model import Imported, import_model
from collage.compiler.known import Known
from collage.compiler.plan import Placed
from collage.compiler.plan_runs import PlanRuns
from collage.compiler.task import Source, Task
from collage.compiler.whole_bench import WholeBench
from collage.core.deadline import BudgetOverError
from collage.core.progress import Progress
from collage.core.threads import in_thread
from collage.errors import ModelError
from collage.frontend.model import Model, from_simplified
from collage.frontend.model_artifacts import fits_an_artifact
from collage.frontend.read.rows import ANY_ROWS
from collage.frontend.read.scopes import operators
from collage.frontend.read.shapes import open_text, shape_flags
from collage.measure.crew import Crews
from collage.measure.measured_model import MeasuredModel
from collage.measure.measurer import Measurer
from collage.measure.rivals import Rivals
from collage.measure.settings import CandidateLimits, MeasureSettings
from collage.measure.worker.process import Workers
from collage.measure.worker.protocol import CandidateRequest
from collage.measure.worker.session import WorkerSession
from collage.measure_db.database import Database
from collage.patterns.context import MatchContext
from collage.patterns.match import Match, RejectedMatch, find_matches
from collage.report.network import type_text
from collage.report.report import NodeReport
from collage.search.candidates import offers_of

log = logging.getLogger(__name__)

Tools: TypeAlias = "tuple[Measurer, Assembler, PlanRuns]"


class Bench:
    """Measures and runs what proposers ask for. ``known`` is the ledger, and ``whole`` tries engines on the model.

    The graph, and all that needs it, is made on first use. That raises ModelError if the model has none.
    """

    def __init__(
        self,
        task: Task,
        database: Database,
        workers: Workers,
        clock: Clock,
        show: Callable[[Progress], None],
        crews: Crews | None = None,
    ) -> None:
        """Without ``crews``, which measure on other machines, kernels are measured here. ``show`` gets progress."""
        self.task = task
        self.database = database
        self.clock = clock
        self.show = show
        self.known = Known()
        self.whole = WholeBench(task, database, workers, show)
        self.raced = 0
        """The number of races between whole networks that were run."""
        self.spent_s: Mapping[str, float] = {}
        """The seconds that the workers have spent, by kind of work. They are known at the end."""
        self._workers = workers
        self._crews = crews
        self._tools: Tools | None = None
        self._coming: Future[Tools] | None = None
        self._session: WorkerSession | None = None
        self._closed = False
        self.why_no_graph = _why_open(task.source)
        """The reason why the model cannot be placed; None if it can, or nobody has asked yet."""

    def begin(self) -> None:
        """Import the model, start its worker and compute reference values in a thread: engines load meanwhile."""
        if self.why_no_graph is not None:
            return
        self._workers.prefetch(self.task.target.threads)
        self._coming = in_thread(self._prepared)

    def _prepared(self) -> Tools:
        tools = self._tools_for(self._imported.model)
        self._session = tools[0].session
        if not self._closed:
            with suppress(Exception, BudgetOverError):  # who asks again is told
                self._session.evaluated()
        return tools

    def settle(self) -> None:
        """Wait for the thread, which would disturb a race."""
        if self._coming is not None:
            wait([self._coming])

    def close(self) -> None:
        """Put the workers away. Closing twice does nothing. A thread that still imports the model starts no worker."""
        self._closed = True
        tools = self._tools  # what is put away only now has no part in the report
        try:
            if self._coming is not None and self._session is not None:
                if not self._coming.done():
                    self._session.end()
                with suppress(Exception, BudgetOverError):
                    tools, self._coming = self._coming.result(), None
            if tools is not None:
                self.spent_s = self.spent_s or tools[0].session.spent()
                tools[0].close()
        finally:
            self.whole.close()

    @property
    def measurements(self) -> int:
        """The number of measurements that were made: of kernels, layout transforms, networks and engines."""
        made = self.raced + self.whole.made
        if self._tools is not None:
            measurer, _, runs = self._tools
            made += measurer.made_in_all + runs.made
        return made

    @property
    def has_graph(self) -> bool:
        """Whether the model, or a part of it, can be placed. ``why_no_graph`` says why not."""
        try:
            return bool(self.model.graph.nodes)
        except ModelError as error:
            log.info("%s: no graph: %s", self.task.source.name, error)
            return False

    @property
    def imported(self) -> Imported:
        """The import of the model. Raises ModelError, each time."""
        self.settle()
        if self.why_no_graph is not None:
            raise self.why_no_graph
        try:
            return self._imported
        except ModelError as error:
            self.why_no_graph = error
            raise

    @cached_property
    def _imported(self) -> Imported:
        found = import_model(self.task)
        self.known.note(*found.notes)
        return found

    def add_folded(self) -> bool:
        """Let plans name the simplified model. False if engines cannot be given that in the place of the model."""
        imported = self.imported
        if imported.folded is None or imported.suffix is not None or imported.model.assumed:
            return False
        self.whole.add_folded(imported.folded)
        return True

    @property
    def model(self) -> Model:
        """The graph, in which ONNX nodes that are converted wrongly are opaque."""
        return self.measurer.model

    @property
    def is_matched(self) -> bool:
        """Whether the graph was made and matched, and has operators."""
        return self._tools is not None and bool(self.model.graph.nodes)

    @property
    def nodes(self) -> list[NodeReport]:
        """The operators of the graph, then the ONNX nodes of its suffix; those of the model if there is no graph."""
        found: list[NodeReport] = []
        on_engine: onnx.ModelProto | None = self.whole.form.original
        if self.is_matched:
            nodes, on_engine = self.model.onnx.graph.node, self.imported.suffix
            values = self.model.graph.values
            for each in self.model.graph.nodes:
                source = nodes[each.source] if each.source >= 0 else onnx.NodeProto()
                types = tuple(str(values[value].type) for value in each.outputs)
                found.append(NodeReport(each.op, source.name, source.op_type, types))
        if on_engine is not None:
            graph = on_engine.graph
            known = {info.name: type_text(info) for info in (*graph.value_info, *graph.output)}
            for node in operators(graph):
                types = tuple(known.get(name, "") for name in node.output)
                found.append(NodeReport(f"onnx.{node.op_type}", node.name, node.op_type, types if any(types) else ()))
        return found

    @property
    def measurer(self) -> Measurer:
        return self._started[0]

    @property
    def assembler(self) -> Assembler:
        return self._started[1]

    @property
    def runs(self) -> PlanRuns:
        return self._started[2]

    @property
    def _started(self) -> Tools:
        if self._tools is None:
            self.show(Progress("import", 0, 1, self.task.source.name))
            self._tools = self._verified(self.imported.model)
            self._match()
        return self._tools

    def _verified(self, model: Model) -> Tools:
        """The tools for the graph. Nodes that TVM's importer converts wrongly are opaque from then on.

        That is repeated, since a node that reads what another one got wrong is compared then.
        """
        self.show(Progress("verify", 0, 1, model.name))
        while True:
            if self._coming is None:
                tools = self._tools_for(model)
            else:
                tools, self._coming = self._coming.result(), None
            try:
                wrong = tools[0].verify()
            except BaseException:
                tools[0].close()
                raise
            if wrong.keys() <= model.opaque.keys():
                return tools
            tools[0].close()
            opaque = {**model.opaque, **wrong}
            model = from_simplified(model.onnx, model.name, opaque, model.example_inputs, model.assumed)

    def _tools_for(self, model: Model) -> Tools:
        task = self.task
        guards = fits_an_artifact(self._imported.original)
        measured = MeasuredModel(model, as_loaded=self._imported.as_loaded, guards=guards, exact=task.options.exact)
        settings = MeasureSettings(
            task.backends,
            task.keyed_versions,
            task.build,
            task.target.measured_on,
            task.options.effort,
            CandidateLimits(task.options.time_limit_s),
        )
        session = WorkerSession(measured, settings, self._workers)
        crew = None if self._crews is None else self._crews.crew(session)
        measurer = Measurer(session, self.database, self.show, crew=crew)
        measurer.network_us = task.source.share_us
        assembler = Assembler(measurer, task)
        runs = PlanRuns(measurer, self.database, self.known, task.target, task.options.seed, self.show)
        return measurer, assembler, runs

    def _match(self) -> None:
        """Find the patterns of all backends, and ask these for the variants of each match."""
        task, model = self.task, self.model
        started = time.perf_counter()
        about = MatchContext(model)
        matches: list[Match] = []
        refused: list[RejectedMatch] = []
        for name in task.backends:
            found, rejected = find_matches(about, name, task.registry.sources(name, task.build))
            matches += found
            if name != VIEW:  # a rejected view says only that its operator does some work
                refused += rejected
        offers, without = offers_of(model, matches, task.backends, task.build)
        if not task.source.family:  # a plan of the whole engine does the same
            everything = len(model.graph.nodes)
            offers = [o for o in offers if o.request.backend not in task.engines or len(o.request.nodes) < everything]
        self.known.matches = matches
        self.known.refused = [*refused, *without]
        self.known.offers = offers
        self.known.search_s += time.perf_counter() - started

    @cached_property
    def final_check(self) -> FinalCheck:
        """What is expected of the graph's modules. It is made on first use, which takes runs of the original."""
        seed = self.task.options.seed
        return FinalCheck.of(self.imported.original, self.model, seed, self.clock.deadline)

    @cached_property
    def accuracy(self) -> Accuracy:
        """The samples that errors of outputs are measured on. It is made on first use. Raises ModelError."""
        task = self.task
        assert task.asked is not None
        return Accuracy.of(self.imported.original, self.model, task.asked, task.options.seed, self.clock.deadline)

    # Measuring, whose outcomes go to the ledger

    def race(self, requests: Sequence[CandidateRequest], mix: Placed | None = None) -> None:
        """Measure the requests, region by region. Those of the same nodes race each other, and kernels of the mix."""
        self.known.outcomes.update(self.measurer.race(requests, _rivals(self, requests, mix)))

    def finish_races(self, requests: Collection[CandidateRequest]) -> None:
        """Measure requests to the end that have lost a race."""
        self.known.outcomes.update(self.measurer.measure([*requests]))

    def measure_switch(self) -> None:
        """Set the cost of a switch between libraries (Eq. 2.2), unless it is known."""
        if not self.known.epsilon_us:
            self.known.epsilon_us = self.measurer.epsilon_us(())


def _why_open(source: Source) -> ModelError | None:
    """The reason why a model is not placed whose shapes stay open; None if they are fixed."""
    if source.rows:
        return ModelError(ANY_ROWS)
    if not source.sizes:
        return None
    sizes = ", ".join(f"{name} {'x'.join(map(str, size))}" for name, size in source.sizes.items())
    return ModelError(
        f"its inputs have open dimensions ({open_text(source.original)}), so that it takes any sizes. Engines were "
        f"compared at {sizes}. Give your own for a placement, for example: {shape_flags(source.original)}."
    )


def _rivals(bench: Bench, requests: Sequence[CandidateRequest], mix: Placed | None) -> Rivals:
    """What the requests race against: kernels of the mix that cover exactly their nodes, and what they could gain."""
    known = bench.known
    if mix is None:
        return Rivals(network_us=bench.measurer.network_us, switch_us=known.epsilon_us)
    kernels = [
        (c.cost_us + known.epsilon_us * c.switches, CandidateRequest(c.nodes, c.backend, c.variant))
        for c in known.timed(mix).placement.candidates
    ]
    kernel_of = {node: at for at, (_, kernel) in enumerate(kernels) for node in kernel.nodes}
    idle = {node for view in known.views for node in view.nodes}

    def of(nodes: tuple[int, ...]) -> list[int]:
        return sorted({kernel_of[node] for node in nodes if node in kernel_of})

    cover: dict[tuple[int, ...], tuple[CandidateRequest, ...]] = {}
    for nodes in {request.nodes for request in requests}:
        inside = [kernels[at][1] for at in of(nodes) if kernels[at][1].backend != VIEW]
        covered = {node for each in inside for node in each.nodes}
        if inside and {*nodes} - idle <= covered <= {*nodes}:
            cover[nodes] = tuple(inside)
    network_us = sum(us for us, _ in kernels)
    return Rivals(cover, network_us, lambda nodes: sum(kernels[at][0] for at in of(nodes)), known.epsilon_us)
