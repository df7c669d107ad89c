"""Assembling executables from plans: the launch list, its memory plan, scans and streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from collage.backends.source_digest import source_digest
from collage.compiler import scans
from collage.compiler.executable import Buffers, Executable, Piece
from collage.compiler.plan import Placed, StreamPlan
from collage.compiler.task import Task
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import np_dtype
from collage.graph.storage import PLAIN
from collage.kernel.options import BuildOptions, Variant
from collage.measure.measurer import Measurer
from collage.measure.worker.plan_protocol import PlanKernel
from collage.measure.worker.protocol import CandidateRequest
from collage.runtime.parts import Parts
from collage.schedule.program import Port, Program, make_program
from collage.schedule.region import TRANSFORM, Region
from collage.schedule.schedule import TEAM
from collage.search.candidate import Candidate
from collage.search.errors import of_outputs
from collage.search.transforms import PlacedTransform


class Assembler:
    """Makes the executables of one model out of kernels that were measured. It compiles nothing."""

    def __init__(self, measurer: Measurer, task: Task) -> None:
        """``measurer`` holds the model and the artifacts."""
        self.model = measurer.model
        self._measurer = measurer
        self._task = task
        self._sources = {name: source_digest(type(each)) for name, each in task.backends.items()}
        """A digest of the source of each backend from outside of the package, "" for the others."""
        self.guards_halves = True
        """Whether values are scanned for what is too large for float16. A model may have infinities on usual inputs."""

    def assemble(
        self, plan: Placed, tunings: Mapping[CandidateRequest, str], *, guard_inputs: bool = False
    ) -> Executable:
        """Lay out the plan's launch list and memory. ``parts`` collects its kernels later.

        ``tunings`` holds the records of ``Tuner.tune``. The model's inputs are scanned if a kernel is right on finite
        numbers only, and with ``guard_inputs``.
        """
        buffers = Buffers(self.model.graph)
        pieces = self._pieces(plan, tunings, buffers)
        if plan.streams is not None:
            pieces = self._on_streams(pieces, plan.streams, buffers)
        guard_inputs = guard_inputs or any(piece.region.finite_only for piece in pieces)
        if guard_inputs:
            pieces = scans.of_inputs(pieces, buffers, self.model.graph, self._measurer.extraordinary)
        if self.guards_halves:
            pieces = scans.of_halves(pieces, buffers, self.model)
        program = self._program([piece.region for piece in pieces], buffers)
        by_region = {piece.region: piece for piece in pieces}
        launched = [by_region[region] for region in program.launches]
        versions = {piece.region.backend: self._task.versions[piece.region.backend] for piece in launched}
        return Executable(
            plan,
            program,
            tuple(piece.what for piece in launched),
            tuple(piece.timed_as for piece in pieces),
            versions,
            tuple(piece.kernel for piece in launched),
            buffers.other_storages,
            guard_inputs,
        )

    def parts(self, executable: Executable) -> Parts:
        """The parts of an executable's module. Its kernels must have been built, in the worker or here."""
        graph, program = self.model.graph, executable.program
        constants = {v: graph.constants[v] for v in graph.outputs if graph.is_constant(v)}
        keys = [kernel.key for kernel in executable.kernels]
        found = {key: self._measurer.kernels.load(key) for key in dict.fromkeys(keys)}
        artifacts = [found[key] for key in keys]
        original = self._measurer.measured.serialised
        return Parts(program, artifacts, constants, self._task.target, executable.versions, original)

    def _pieces(self, plan: Placed, tunings: Mapping[CandidateRequest, str], buffers: Buffers) -> list[Piece]:
        """The plan's pieces one after another, each layout transform right before the first piece that needs it."""
        pieces: list[Piece] = []
        waiting = list(plan.placement.transforms)
        for candidate in plan.placement.candidates:
            options = replace(
                self._task.build,
                exclusive=plan.exclusive,
                tuning=tunings.get(CandidateRequest(candidate.nodes, candidate.backend, candidate.variant), ""),
                variant=candidate.variant,
            )
            piece = self._kernel(candidate, options, buffers)
            read = piece.region.inputs
            needed = [each for each in waiting if buffers.stored(each.value, each.transform.target) in read]
            pieces += [self._transform(each, self._task.build, buffers) for each in needed]
            pieces.append(piece)
            waiting = [each for each in waiting if each not in needed]
        # The transforms that are left are for the model's outputs.
        return pieces + [self._transform(each, self._task.build, buffers) for each in waiting]

    def _kernel(self, candidate: Candidate, options: BuildOptions, buffers: Buffers) -> Piece:
        """The piece that runs a candidate's kernel, built with ``options``."""
        model = self.model
        subgraph = Subgraph(model, candidate.nodes)
        nodes = model.onnx.graph.node
        sources = dict.fromkeys(node.source for node in subgraph.operators)
        reads, writes = dict(candidate.reads), dict(candidate.writes)
        backend = self._task.backends[candidate.backend]
        region = Region(
            backend=candidate.backend,
            ops=subgraph.ops,
            nodes=candidate.nodes,
            sources=tuple(nodes[s].name for s in sources if s >= 0),
            inputs=tuple(buffers.stored(v, reads.get(v, PLAIN)) for v in subgraph.inputs),
            outputs=tuple(buffers.stored(v, writes.get(v, PLAIN)) for v in subgraph.outputs),
            layout=candidate.variant.layout,
            split=candidate.variant.split,
            precision=candidate.variant.precision,
            threads=options.threads,
            cost_us=candidate.cost_us,
            noise_us=candidate.noise_us,
            exclusive=options.exclusive,
            in_place=tuple(backend.in_place(subgraph)),
            finite_only=candidate.finite_only,
            reassociates=backend.reassociates(subgraph, candidate.variant),
            error=of_outputs(candidate.error),
        )
        about = [candidate.backend, subgraph.digest, options.exclusive, candidate.variant, options.tuning]
        # Such as the edition of its kernels, which its library's version does not tell.
        if settings := backend.settings(replace(options, tune_trials=0)):
            about.append(settings)
        if source := self._sources[candidate.backend]:
            about.append(source)
        request = CandidateRequest(candidate.nodes, candidate.backend, candidate.variant)
        return Piece(region, candidate, ":".join(map(str, about)), PlanKernel(request, options))

    def _transform(self, placed: PlacedTransform, build: BuildOptions, buffers: Buffers) -> Piece:
        """The piece that brings a value from one storage to another."""
        transform = placed.transform
        variant = Variant((transform.source,), (transform.target,))
        maker = self._measurer.transform_backend(transform)
        assert maker is not None  # a transform that was measured has a backend that makes it
        region = Region(
            backend=maker.name,
            ops=TRANSFORM,
            nodes=(),
            sources=(),
            inputs=(buffers.stored(placed.value, transform.source),),
            outputs=(buffers.stored(placed.value, transform.target),),
            layout=variant.layout,
            threads=build.threads,
            cost_us=placed.cost_us,
        )
        kernel = PlanKernel(transform, build)
        return Piece(region, placed, f"{maker.name}:{transform.kind}:{variant}", kernel)

    def _on_streams(self, pieces: Sequence[Piece], streams: StreamPlan, buffers: Buffers) -> list[Piece]:
        """The pieces in the order of the schedule; those on a stream of the host are single-threaded.

        A view stands right after the piece that makes its last input.
        """
        launches = self._program([piece.region for piece in pieces], buffers).launches
        launched = [piece for piece in pieces if piece.region in launches]
        waiting = [piece for piece in pieces if piece.region not in launches]
        single = replace(self._task.build, threads=1)
        found: list[Piece] = []
        made = {p.value for p in self._ports(self.model.graph.inputs, self.model.input_names)}

        def add(piece: Piece) -> None:
            found.append(piece)
            made.update(piece.region.outputs)

        def add_views() -> None:
            # A view of a view becomes ready when the first one is added.
            while ready := [v for v in waiting if made >= set(v.region.inputs)]:
                for view in ready:
                    waiting.remove(view)
                    add(view)

        add_views()
        for v in streams.schedule.order:
            stream, alone = streams.schedule.streams[v], streams.single_threaded[v]
            piece = launched[v]
            if stream != TEAM and alone is None:  # it is on a GPU, whose streams are numbered from 1 on
                region = replace(piece.region, stream=stream + 1)
                piece = replace(piece, region=region, digest=f"{piece.digest} on {stream}")
            elif stream != TEAM:
                if isinstance(alone, PlacedTransform):
                    piece = self._transform(alone, single, buffers)
                elif alone is not None:
                    piece = self._kernel(alone, replace(single, variant=alone.variant), buffers)
                region = replace(piece.region, stream=stream)
                piece = replace(piece, region=region, digest=f"{piece.digest} on {stream}")
            add(piece)
            add_views()
        return found

    def _program(self, regions: Sequence[Region], buffers: Buffers) -> Program:
        model, graph = self.model, self.model.graph
        rows = model.index_limits
        inputs = [replace(p, rows=rows.get(p.name)) for p in self._ports(graph.inputs, model.input_names)]
        outputs = self._ports(graph.outputs, model.output_names)
        used = {v for r in regions for v in (*r.inputs, *r.outputs)} | {p.value for p in (*inputs, *outputs)}
        types = {v: buffers.type_of(v) for v in sorted(used)}
        devices = {v: each for v, each in buffers.devices.items() if v in used}
        assumed = {
            port.value: np.ascontiguousarray(model.assumed[port.name], np_dtype(port.type.dtype)).tobytes()
            for port in inputs
            if port.name in model.assumed
        }
        threads = self._task.target.threads
        return make_program(regions, inputs, outputs, types, threads, devices, assumed=assumed)

    def _ports(self, values: Sequence[int], names: Sequence[str]) -> list[Port]:
        graph = self.model.graph
        return [Port(name, value, graph.type_of(value)) for name, value in zip(names, values, strict=True)]
