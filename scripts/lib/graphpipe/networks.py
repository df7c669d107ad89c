"""The networks of chapter 3 as block graphs with analytic costs of V100s, and its cluster (§3.7, §3.10.3).

Assumptions that the chapter leaves open: float32; momentum (three numbers for each weight); a backward pass is twice a
forward pass; V100s of 16 GB with 14 TFLOPS in large matrix products and 720 GB/s of memory; matrix products are cut
into tiles of 128 x 128, and tiles cost 1 + 12 / their number, with which a layer of the case study is 10 % faster for
each sample at a micro-batch of 4 than of 2, as the chapter says; 10 µs a kernel; NVLink with 45 GB/s and 10 µs,
100 Gb/s between nodes with 20 µs. MMT's blocks are layers. DLRM concatenates its branches before four layers of 4096;
CANDLE ends with one number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from collage.graphpipe.cluster import Cluster, Link
from collage.graphpipe.costs import Costs
from collage.graphpipe.graph import Block, BlockGraph, Edge

_FLOAT, _KERNEL_S, _TILE = 4, 10e-6, 128
_NVLINK, _NETWORK = Link(10e-6, 45e9), Link(20e-6, 12.5e9)
_STATE = 3.0  # weights, gradients and momentum


@dataclass(frozen=True)
class Device:
    """The speeds and the memory of a device, and of links between devices."""

    flops: float = 14e12
    memory_bandwidth: float = 720e9
    memory_bytes: float = 16e9
    half_tiles: float = 12.0
    inner: Link = _NVLINK
    outer: Link = _NETWORK

    def scaled(self, compute: float = 1.0, links: float = 1.0, memory: float = 1.0) -> Device:
        """The device with other speeds, bandwidths of links, and memory, as ratios."""
        inner, outer = (Link(each.latency_s, each.bandwidth * links) for each in (self.inner, self.outer))
        speeds = (self.flops * compute, self.memory_bandwidth * compute, self.memory_bytes * memory)
        return Device(*speeds, self.half_tiles, inner, outer)

    def matmul_s(self, rows: int, inner: int, columns: int) -> float:
        """The seconds of a product of matrices [rows, inner] and [inner, columns]."""
        tiles = -(-rows // _TILE) * -(-columns // _TILE)
        compute = 2.0 * max(rows, 32) * inner * columns / self.flops * (1 + self.half_tiles / tiles)
        return _KERNEL_S + max(compute, self.moved_s(rows * inner + inner * columns + rows * columns))

    def moved_s(self, numbers: float) -> float:
        """The seconds to read or write so many numbers."""
        return numbers * _FLOAT / self.memory_bandwidth

    def block(self, name: str, forward_s: Sequence[float], weights: float, activations: float) -> Block:
        """A block of so many weights, which keeps so many numbers a sample for its backward pass."""
        backward = tuple(2 * each for each in forward_s)
        update_s = self.moved_s(5 * weights)  # read weights, gradients and momentum, write two of them
        return Block(name, tuple(forward_s), backward, update_s, weights * _FLOAT, activations * _FLOAT)

    def cluster(self, devices: int) -> Cluster:
        """Nodes of four such devices."""
        return Cluster(devices, self.memory_bytes, self.inner, self.outer, min(4, devices))


def _sizes(largest: int) -> list[int]:
    return [1 << at for at in range(largest.bit_length())]


def _graph(name: str, branches: Sequence[Sequence[Block]], after: Sequence[Block], widths: Sequence[int]) -> BlockGraph:
    """Branches whose outputs, of so many numbers, the first block of ``after`` reads; all blocks of one have them."""
    blocks: list[Block] = []
    edges = []
    ends = []
    for branch, width in zip(branches, widths, strict=True):
        edges += [Edge(at, at + 1, width * _FLOAT) for at in range(len(blocks), len(blocks) + len(branch) - 1)]
        blocks += branch
        ends.append((len(blocks) - 1, width))
    edges += [Edge(end, len(blocks), width * _FLOAT) for end, width in ends]
    edges += [Edge(at, at + 1, 4096 * _FLOAT) for at in range(len(blocks), len(blocks) + len(after) - 1)]
    return BlockGraph(name, (*blocks, *after), tuple(edges), _STATE)


def _transformer(device: Device, name: str, largest: int, sequence: int = 256, hidden: int = 1024) -> Block:
    heads, wide, seconds = 16, 4 * hidden, []
    for batch in _sizes(largest):
        rows = batch * sequence
        products = ((hidden, 3 * hidden), (hidden, hidden), (hidden, wide), (wide, hidden))
        scores = batch * heads * sequence**2
        attention = 4.0 * scores * hidden / heads / (device.flops / 2) + device.moved_s(4 * scores)
        others = device.moved_s(rows * (8 * hidden + 2 * wide)) + 6 * _KERNEL_S
        seconds.append(sum(device.matmul_s(rows, *each) for each in products) + attention + others)
    kept = sequence * (8 * hidden + 2 * wide) + heads * sequence**2
    return device.block(name, seconds, 12.0 * hidden**2, kept)


def _dense(device: Device, name: str, inner: int, columns: int, largest: int) -> Block:
    seconds = [
        device.matmul_s(batch, inner, columns) + device.moved_s(2 * batch * columns) + _KERNEL_S
        for batch in _sizes(largest)
    ]
    return device.block(name, seconds, float(inner * columns), inner + columns)


def mmt(device: Device, largest: int, branches: int = 4, layers: int = 8) -> BlockGraph:
    """The Multi-Modal Transformer: branches of layers with a sequence of 256, concatenated at the end."""
    width = 256 * 1024
    blocks = [[_transformer(device, f"{n}.{at}", largest) for at in range(layers)] for n in range(branches)]
    concat = [_KERNEL_S + device.moved_s(2 * branches * width * batch) for batch in _sizes(largest)]
    return _graph("mmt", blocks, [device.block("concat", concat, 0, 0)], [width] * branches)


def dlrm(device: Device, largest: int) -> BlockGraph:
    """DLRM: seven dense branches of four layers, seven embedding tables, and four layers after them."""
    dense = [[_dense(device, f"dense{n}.{at}", 4096, 4096, largest) for at in range(4)] for n in range(7)]
    bag, rows, dimension = 100, 1_000_000, 64
    lookup = [_KERNEL_S + device.moved_s(2 * bag * dimension * batch) for batch in _sizes(largest)]
    sparse = [[device.block(f"sparse{n}", lookup, float(rows * dimension), bag)] for n in range(7)]
    widths = [4096] * 7 + [bag * dimension] * 7
    after = [_dense(device, f"top{at}", 4096 if at else sum(widths), 4096, largest) for at in range(4)]
    return _graph("dlrm", [*dense, *sparse], after, widths)


def candle(device: Device, largest: int, branches: int = 7) -> BlockGraph:
    """CANDLE-Uno: branches of four layers, and one number from all of them."""
    dense = [[_dense(device, f"{n}.{at}", 4096, 4096, largest) for at in range(4)] for n in range(branches)]
    return _graph("candle", dense, [_dense(device, "output", 4096 * branches, 1, largest)], [4096] * branches)


def case_study(batch: int, device: Device | None = None) -> Costs:
    """The case study of §3.7.4 on eight devices: two branches of four blocks of attention and two linear layers.

    The chapter does not say what limits its memory: here a device has what 21 samples of a block need. So a chain of
    depth 8 has room for micro-batches of 2, and a graph for those of 4, as in the chapter. Its depth is 5: the last
    stage of one branch has the concatenation, and follows the last stage of the other one.
    """
    device = device or Device()
    graph = mmt(device, batch, branches=2, layers=4)
    block = graph.blocks[0]
    memory = block.weight_bytes * _STATE + block.activation_bytes * 21
    one_node = replace(device, memory_bytes=memory).cluster(8)
    return Costs(graph, one_node, batch)


BATCHES: Mapping[str, Mapping[int, int]] = {
    "mmt": {4: 64, 8: 128, 16: 256, 32: 512},
    "dlrm": {4: 256, 8: 512, 16: 1024, 32: 2048},
    "candle": {4: 4096, 8: 8192, 16: 16384, 32: 32768},
}
"""The mini-batch of each network by the number of devices."""
NETWORKS = {"mmt": mmt, "dlrm": dlrm, "candle": candle}


def problem(name: str, devices: int, device: Device | None = None) -> Costs:
    """A network on the chapter's cluster, at its mini-batch for so many devices."""
    device = device or Device()
    batch = BATCHES[name][devices]
    return Costs(NETWORKS[name](device, batch), device.cluster(devices), batch)
