"""From plans to executables: buffers, the launch list, guards and streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from collage.backends.base import VIEW, Backend
from collage.compiler.executable import Executable
from collage.compiler.plan import Plan, StreamPlan
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Graph, TensorType
from collage.graph.magnitudes import Magnitudes, is_scanned
from collage.graph.storage import PLAIN, Storage, stored_type
from collage.kernel.options import BuildOptions, Variant
from collage.kernel.target import Target
from collage.measure_db.fingerprint import original_digest
from collage.measure_db.measurer import Measurer
from collage.measure_db.plan_protocol import PlanKernel
from collage.measure_db.protocol import Request
from collage.report.words import as_written
from collage.runtime.parts import Parts
from collage.schedule.guards import Flow, guarded
from collage.schedule.program import Port, Program, make_program
from collage.schedule.region import TRANSFORM, Region
from collage.schedule.schedule import TEAM
from collage.search.candidate import Candidate
from collage.search.transforms import PlacedTransform


class Assembler:
    """Makes executables of one model. They are made of what was measured: nothing is compiled here."""

    def __init__(
        self,
        measurer: Measurer,
        backends: Mapping[str, Backend],
        build: BuildOptions,
        target: Target,
        versions: Mapping[str, str],
    ) -> None:
        """``measurer`` has the model, the artifacts, and maybe the model as its author wrote it (``as_region``)."""
        self.model = measurer.model
        self._measurer = measurer
        self.target = target
        self._backends = backends
        self._build = build
        self._versions = versions
        self._magnitudes = Magnitudes(measurer.model.graph)

    def assemble(
        self, plan: Plan, tunings: Mapping[Request, str], *, guard_inputs: bool = False
    ) -> Executable:
        """Lay out the plan's launch list and memory; ``parts`` collects its kernels later.

        ``tunings`` has the records of Tuner.tune. With ``guard_inputs`` the model's inputs are scanned, whatever the
        kernels are.
        """
        graph = self.model.graph
        buffers = _Buffers(graph)
        pieces: list[_Piece] = []
        waiting = list(plan.placement.transforms)
        for candidate in plan.placement.candidates:
            tuning = tunings.get(Request(candidate.nodes, candidate.backend, candidate.variant), "")
            options = replace(
                self._build,
                exclusive=plan.exclusive,
                tuning=tuning,
                variant=candidate.variant,
                profile=plan.profile,
            )
            kernel = self._kernel(candidate, options, buffers)
            if plan.original:
                kernel = self._as_written(kernel, options)
            taken = kernel.region.inputs
            needed = [each for each in waiting if buffers.stored(each.value, each.transform.target) in taken]
            pieces += [self._transform(each, self._build, buffers) for each in needed]
            pieces.append(kernel)
            waiting = [each for each in waiting if each not in needed]
        # What is left is for the model's outputs.
        pieces += [self._transform(each, self._build, buffers) for each in waiting]
        if plan.streams is not None:
            pieces = self._on_streams(pieces, plan.streams, buffers)
        pieces = self._guarded(pieces, buffers)
        if guard_inputs:
            pieces = self._with_guarded_inputs(pieces, buffers)
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
        """What the module of an executable is made of; the executable was opened in the worker, or made here."""
        graph, program = self.model.graph, executable.program
        constants = {v: graph.constants[v] for v in graph.outputs if graph.is_constant(v)}
        keys = [kernel.key for kernel in executable.kernels]
        found = {key: self._measurer.artifacts.load(key) for key in dict.fromkeys(keys)}
        artifacts = [found[key] for key in keys]
        careful = self._measurer.as_loaded if program.is_guarded else None
        return Parts(program, artifacts, constants, self.target, executable.versions, careful)

    def _with_guarded_inputs(self, pieces: Sequence[_Piece], buffers: _Buffers) -> list[_Piece]:
        """The same with a scan of each of the model's inputs before the first launch that reads it."""
        found = list(pieces)
        for value in self.model.graph.inputs:
            if not is_scanned(buffers.type_of(value).dtype):
                continue
            names = {value}  # the input and its views
            for number, piece in enumerate(found):
                region = piece.region
                if not names.intersection(region.inputs):
                    continue
                if region.backend == VIEW and len(region.inputs) == 1:
                    names.update(region.outputs)
                    continue
                scans = (*region.scans, *(v for v in region.inputs if v in names and v not in region.scans))
                found[number] = replace(piece, region=replace(region, scans=scans))
                break
        return found

    def _guarded(self, pieces: Sequence[_Piece], buffers: _Buffers) -> list[_Piece]:
        """The same with scans before some of them."""
        regions = [piece.region for piece in pieces]
        types = {v: buffers.type_of(v) for r in regions for v in (*r.inputs, *r.outputs)}
        found = guarded(regions, [self._flow(piece) for piece in pieces], types)
        return [replace(piece, region=region) for piece, region in zip(pieces, found, strict=True)]

    def _flow(self, piece: _Piece) -> Flow:
        """How magnitudes pass through a piece."""
        if isinstance(piece.what, PlacedTransform):
            return lambda taken: (taken[0], taken)
        subgraph = Subgraph(self.model, piece.what.nodes)

        def flow(taken: Sequence[float]) -> tuple[float, Sequence[float]]:
            found = self._magnitudes.through(
                subgraph.operators, dict(zip(subgraph.inputs, taken, strict=True))
            )
            return max(found.values()), [found[value] for value in subgraph.outputs]

        return flow

    def _as_written(self, piece: _Piece, options: BuildOptions) -> _Piece:
        """The same region, all of the graph, run from the original model."""
        original = self._measurer.original
        assert original is not None
        name = as_written(options.profile)
        region = replace(piece.region, original=True, profile=options.profile)
        request = Request(region.nodes, region.backend, original=True, profile=options.profile)
        digest = f"{piece.digest} {name} {original_digest(original)}"
        return replace(piece, region=region, digest=digest, kernel=PlanKernel(request, options))

    def _on_streams(self, pieces: Sequence[_Piece], streams: StreamPlan, buffers: _Buffers) -> list[_Piece]:
        """The pieces in the order of the schedule, those on a stream single-threaded; views where they can be."""
        launches = self._program([piece.region for piece in pieces], buffers).launches
        launched = [piece for piece in pieces if piece.region in launches]
        waiting = [piece for piece in pieces if piece.region not in launches]
        single = replace(self._build, threads=1)
        found: list[_Piece] = []
        made = {p.value for p in self._ports(self.model.graph.inputs, self.model.input_names)}

        def add(piece: _Piece) -> None:
            found.append(piece)
            made.update(piece.region.outputs)

        def add_views() -> None:
            while ready := [
                v for v in waiting if made >= set(v.region.inputs)
            ]:  # a view of a view may be next
                for view in ready:
                    waiting.remove(view)
                    add(view)

        add_views()
        for v in streams.schedule.order:
            stream, alone = streams.schedule.streams[v], streams.single_threaded[v]
            piece = launched[v]
            if stream != TEAM:
                assert alone is not None
                if isinstance(alone, PlacedTransform):
                    piece = self._transform(alone, single, buffers)
                else:
                    piece = self._kernel(alone, replace(single, variant=alone.variant), buffers)
                region = replace(piece.region, stream=stream)
                piece = replace(piece, region=region, digest=f"{piece.digest} on {stream}")
            add(piece)
            add_views()
        return found

    def _program(self, regions: Sequence[Region], buffers: _Buffers) -> Program:
        model, graph = self.model, self.model.graph
        rows = model.index_limits
        inputs = [replace(p, rows=rows.get(p.name)) for p in self._ports(graph.inputs, model.input_names)]
        outputs = self._ports(graph.outputs, model.output_names)
        used = {v for r in regions for v in (*r.inputs, *r.outputs)} | {p.value for p in (*inputs, *outputs)}
        types = {v: buffers.type_of(v) for v in sorted(used)}
        return make_program(regions, inputs, outputs, types, self.target.threads)

    def _ports(self, values: Sequence[int], names: Sequence[str]) -> list[Port]:
        graph = self.model.graph
        return [Port(name, value, graph.type_of(value)) for name, value in zip(names, values, strict=True)]

    def _kernel(self, candidate: Candidate, options: BuildOptions, buffers: _Buffers) -> _Piece:
        subgraph = Subgraph(self.model, candidate.nodes)
        nodes = self.model.onnx.graph.node
        sources = dict.fromkeys(node.source for node in subgraph.operators)
        reads, writes = dict(candidate.reads), dict(candidate.writes)
        region = Region(
            backend=candidate.backend,
            ops=subgraph.ops,
            nodes=candidate.nodes,
            sources=tuple(nodes[s].name for s in sources if s >= 0),
            inputs=tuple(buffers.stored(v, reads.get(v, PLAIN)) for v in subgraph.inputs),
            outputs=tuple(buffers.stored(v, writes.get(v, PLAIN)) for v in subgraph.outputs),
            layout=candidate.variant.layout,
            split=candidate.variant.split,
            threads=options.threads,
            cost_us=candidate.cost_us,
            noise_us=candidate.noise_us,
            exclusive=options.exclusive,
            in_place=tuple(self._backends[candidate.backend].in_place(subgraph)),
            finite_only=candidate.finite_only,
            reassociates=self._backends[candidate.backend].reassociates(subgraph, candidate.variant),
        )
        about = (candidate.backend, subgraph.digest, options.exclusive, candidate.variant, options.tuning)
        request = Request(candidate.nodes, candidate.backend, candidate.variant)
        return _Piece(region, candidate, ":".join(map(str, about)), PlanKernel(request, options))

    def _transform(self, placed: PlacedTransform, build: BuildOptions, buffers: _Buffers) -> _Piece:
        transform = placed.transform
        variant = Variant((transform.source,), (transform.target,))
        maker = self._measurer.transform_backend(transform)
        assert maker is not None  # who made it when it was measured
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
        return _Piece(region, placed, f"{maker.name}:{transform.kind}:{variant}", kernel)


@dataclass(frozen=True)
class _Piece:
    """A region, what it is in the placement, what identifies its kernel anywhere, and what it is in this model."""

    region: Region
    what: Candidate | PlacedTransform
    digest: str
    kernel: PlanKernel

    @property
    def timed_as(self) -> str:
        """What beside its neighbours its time in the network depends on."""
        scans = self.region.scans
        return f"{self.digest} after {len(scans)} scans" if scans else self.digest


class _Buffers:
    """Ids of buffers: a plain value's own, and for each other storage that it is held in a new one."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._ids: dict[tuple[int, Storage], int] = {}
        self._types: dict[int, TensorType] = {}

    def stored(self, value: int, storage: Storage) -> int:
        if storage == PLAIN:
            return value
        if (value, storage) not in self._ids:
            new = len(self._graph.values) + len(self._ids)
            self._ids[value, storage] = new
            self._types[new] = stored_type(self._graph.type_of(value), storage)
        return self._ids[value, storage]

    @property
    def other_storages(self) -> dict[int, tuple[int, Storage]]:
        """The value and storage of each new buffer."""
        return {buffer: key for key, buffer in self._ids.items()}

    def type_of(self, buffer: int) -> TensorType:
        return self._types[buffer] if buffer in self._types else self._graph.type_of(buffer)
