"""The roofline: a time that no kernel of a subgraph can be faster than, by the machine's arithmetic and bandwidth.

The bound holds for float32 arithmetic on the CPU, and not for kernels in fewer bits or on another device. It holds for
all algorithms that kernels have: what Winograd's saves is taken off. What is read and written may be in any cache, as
far as it fits there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from collage.frontend.relax.op_kinds import op_kind
from collage.frontend.subgraph import Subgraph
from collage.graph.arithmetic import CONVOLUTIONS, NOTHING, arithmetic_of, convolution_axes
from collage.graph.dataflow import Graph, Node, OpKind
from collage.graph.views import RENAMING
from collage.kernel.machine_speeds import Level, MachineSpeeds

_ROOM = 1.1
"""Kernels may be so many times faster than the loops that measured the machine, which it may have slowed down."""

_READ_ALL = (
    frozenset(
        "matmul permute_dims concat split nn.pad sum mean prod max min std variance argmax argmin nn.softmax "
        "nn.log_softmax nn.layer_norm nn.group_norm nn.instance_norm nn.rms_norm cumsum".split()
    )
    | RENAMING
)
"""Operators besides convolutions and element-wise ones whose results take all elements of their inputs."""
_FROM_INTEGERS = "dequantize"
_EACH = (OpKind.ELEMWISE, OpKind.BROADCAST)
_SOME = frozenset("where nn.dropout broadcast_to".split())
"""Element-wise operators whose results may be made without all elements of each input."""


@dataclass(frozen=True)
class LeastWork:
    """What a kernel of a subgraph has to do at least: arithmetic, and the bytes that it reads and writes.

    ``footprint`` are the bytes of memory that these are, where results overwrite inputs of their size.
    """

    flop: float
    read_bytes: int
    written_bytes: int
    footprint: int


def least_us(subgraph: Subgraph, speeds: MachineSpeeds, *, direct: bool = False) -> float:
    """Microseconds that any kernel of the subgraph takes at least, with all threads of the team.

    With ``direct`` it is a bound for kernels whose algorithm does not reassociate (``Backend.reassociates``), which is
    the larger one. It is 0 where the speeds of the machine were not measured.
    """
    if not speeds.measured:
        return 0.0
    work = work_of(subgraph, direct=direct)
    arithmetic_us = work.flop / (speeds.threads * speeds.peak_gflops * 1e3)
    return max(arithmetic_us, _transfer_us(work, speeds)) / _ROOM


def work_of(subgraph: Subgraph, *, direct: bool = False) -> LeastWork:
    """The work of the subgraph's definition that cannot be avoided.

    An operator's arithmetic counts where all of its result is needed: a slice behind it could leave a part out. It does
    not count where operands are dequantized in the subgraph, since a kernel may multiply their integers.
    """
    graph, needed = subgraph.model.graph, set(subgraph.outputs)
    whole = {value for node in subgraph.operators if node.op == _FROM_INTEGERS for value in node.outputs}
    flop, read = 0.0, set[int]()
    for node in reversed(subgraph.operators):
        if not needed.issuperset(node.outputs if node.op == "split" else node.outputs[:1]):
            continue
        arithmetic = NOTHING if whole.intersection(node.inputs) else arithmetic_of(graph, node)
        flop += arithmetic.flop if direct else arithmetic.least_flop
        taken = [*_read_whole(graph, node)]
        needed.update(taken)
        read.update(taken)
    inputs, constants = (
        [graph.type_of(v).nbytes for v in some if v in read] for some in (subgraph.inputs, subgraph.constants)
    )
    written = [graph.type_of(v).nbytes for v in subgraph.outputs]
    overwritten = sum(nbytes for nbytes in written if nbytes in inputs)
    taken_bytes, written_bytes = sum(inputs) + sum(constants), sum(written)
    return LeastWork(flop, taken_bytes, written_bytes, taken_bytes + written_bytes - overwritten)


def _read_whole(graph: Graph, node: Node) -> Iterator[int]:
    """The inputs all of whose elements are needed for all elements of the outputs."""
    if node.op in CONVOLUTIONS:
        axes = convolution_axes(graph, node)
        if axes and not axes[0].transposed and all(each.sees_all for each in axes):
            yield node.inputs[0]
        if axes and all(each.takes_all for each in axes):
            yield node.inputs[1]
    elif node.op in _READ_ALL or (op_kind(node.op) in _EACH and node.op not in _SOME):
        yield from node.inputs


def _transfer_us(work: LeastWork, speeds: MachineSpeeds) -> float:
    """The time of reading and writing: in the first cache, or of what does not fit into the caches so far.

    A cache may read and write at once; memory has one path for both.
    """
    levels = speeds.levels
    held_bytes = accumulate(each.nbytes * (1 if each.shared else speeds.threads) for each in levels[:-1])
    one_way = [_one_way_gbs(each, speeds.threads) for each in levels]
    both_ways = [gbs * (2 if each.nbytes else 1) for gbs, each in zip(one_way, levels, strict=True)]
    fastest = [*accumulate(reversed(both_ways), max)][::-1]
    least = max(work.read_bytes, work.written_bytes) / max(one_way)
    for gbs, held in zip(fastest[1:], held_bytes, strict=True):
        least = max(least, (work.footprint - held) / gbs)
    return least / 1e3


def _one_way_gbs(level: Level, threads: int) -> float:
    """What the team may read from a level, or write there.

    A team is disturbed more easily than one thread; caches that cores have to themselves add up.
    """
    one = max(level.read_gbs, level.write_gbs) * (1 if level.shared else threads)
    return max(one, level.team_read_gbs, level.team_write_gbs)
