"""Assembling executables from plans: the launch list, its memory plan, scans and streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from collage.backends.base import Backend
from collage.compiler.executable import Executable
from collage.compiler.pieces import Buffers, Piece, PieceMaker
from collage.compiler.plan import Placed, StreamPlan
from collage.compiler.scans import Scans
from collage.graph.dataflow import np_dtype
from collage.kernel.options import BuildOptions
from collage.kernel.target import Target
from collage.measure.measurer import Measurer
from collage.measure.worker.protocol import CandidateRequest
from collage.runtime.parts import Parts
from collage.schedule.program import Port, Program, make_program
from collage.schedule.region import Region
from collage.schedule.schedule import TEAM
from collage.search.transforms import PlacedTransform


class Assembler:
    """Makes the executables of one model out of kernels that were measured. It compiles nothing."""

    def __init__(
        self,
        measurer: Measurer,
        backends: Mapping[str, Backend],
        build: BuildOptions,
        target: Target,
        versions: Mapping[str, str],
    ) -> None:
        """``measurer`` holds the model, the artifacts and, for baselines, the model as its author wrote it.

        ``versions`` are the library versions of the backends.
        """
        self.model = measurer.model
        self.target = target
        self._measurer = measurer
        self._make = PieceMaker(measurer, backends)
        self._scans = Scans(measurer.model, measurer.extraordinary)
        self._build = build
        self._versions = versions
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
            pieces = self._scans.of_inputs(pieces, buffers)
        if self.guards_halves:
            pieces = self._scans.of_halves(pieces, buffers)
        program = self._program([piece.region for piece in pieces], buffers)
        by_region = {piece.region: piece for piece in pieces}
        launched = [by_region[region] for region in program.launches]
        versions = {piece.region.backend: self._versions[piece.region.backend] for piece in launched}
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
        careful = self._measurer.measured.serialised if program.is_guarded else None
        return Parts(program, artifacts, constants, self.target, executable.versions, careful)

    def _pieces(self, plan: Placed, tunings: Mapping[CandidateRequest, str], buffers: Buffers) -> list[Piece]:
        """The plan's pieces one after another, each layout transform right before the first piece that needs it."""
        pieces: list[Piece] = []
        waiting = list(plan.placement.transforms)
        for candidate in plan.placement.candidates:
            options = replace(
                self._build,
                exclusive=plan.exclusive,
                tuning=tunings.get(
                    CandidateRequest(candidate.nodes, candidate.backend, candidate.variant), ""
                ),
                variant=candidate.variant,
            )
            piece = self._make.kernel(candidate, options, buffers)
            read = piece.region.inputs
            needed = [each for each in waiting if buffers.stored(each.value, each.transform.target) in read]
            pieces += [self._make.transform(each, self._build, buffers) for each in needed]
            pieces.append(piece)
            waiting = [each for each in waiting if each not in needed]
        # The transforms that are left are for the model's outputs.
        return pieces + [self._make.transform(each, self._build, buffers) for each in waiting]

    def _on_streams(self, pieces: Sequence[Piece], streams: StreamPlan, buffers: Buffers) -> list[Piece]:
        """The pieces in the order of the schedule; those on a stream of the host are single-threaded.

        A view stands right after the piece that makes its last input.
        """
        launches = self._program([piece.region for piece in pieces], buffers).launches
        launched = [piece for piece in pieces if piece.region in launches]
        waiting = [piece for piece in pieces if piece.region not in launches]
        single = replace(self._build, threads=1)
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
                    piece = self._make.transform(alone, single, buffers)
                elif alone is not None:
                    piece = self._make.kernel(alone, replace(single, variant=alone.variant), buffers)
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
        return make_program(regions, inputs, outputs, types, self.target.threads, devices, assumed=assumed)

    def _ports(self, values: Sequence[int], names: Sequence[str]) -> list[Port]:
        graph = self.model.graph
        return [Port(name, value, graph.type_of(value)) for name, value in zip(names, values, strict=True)]
