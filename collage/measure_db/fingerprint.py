"""Hashes of graphs, which show that two processes mean the same one, and of models, for remembering facts."""

from __future__ import annotations

import hashlib

import onnx

from collage.frontend.model import Model
from collage.frontend.read.proto_size import bytes_of
from collage.graph.dataflow import Graph

_SMALL_BYTES = 1024


def fingerprint(graph: Graph) -> str:
    """A hash of the graph's structure with its ids. It is equal where node and value ids mean the same."""
    hasher = hashlib.sha256()
    for node in graph.nodes:
        hasher.update(f"{node.op}{node.inputs}{node.outputs}{node.source};".encode())
    for value in graph.values:
        hasher.update(f"{value.type}{value.producer};".encode())
    hasher.update(f"{graph.inputs}{graph.outputs}".encode())
    return hasher.hexdigest()


def model_digest(model: Model) -> str:
    """A hash of the ONNX nodes, types and small initializers, and of which nodes are opaque.

    The content of weights does not count: whether a conversion is right does not depend on it.
    """
    hasher = hashlib.sha256()
    graph = model.onnx.graph
    for node in graph.node:
        hasher.update(node.SerializeToString(deterministic=True))
    for info in [*graph.input, *graph.output]:
        hasher.update(info.SerializeToString(deterministic=True))
    for tensor in graph.initializer:
        hasher.update(f"{tensor.name}{tensor.dims}{tensor.data_type}".encode())
        if bytes_of(tensor) <= _SMALL_BYTES and tensor.data_location != onnx.TensorProto.EXTERNAL:
            hasher.update(tensor.SerializeToString(deterministic=True))
    hasher.update(f"{sorted(model.opaque)}{[(o.domain, o.version) for o in model.onnx.opset_import]}".encode())
    return hasher.hexdigest()
