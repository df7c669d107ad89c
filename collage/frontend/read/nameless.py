"""The attributes of an ONNX node without the names in its bodies, so that loops of equal work are found to be equal."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from collage.frontend.read.scopes import bodies, captures, defines


def nameless_attributes(node: onnx.NodeProto) -> bytes:
    """The node's attributes, equal for nodes whose bodies (those of If, Loop and Scan) differ in names only.

    What the bodies capture is named by its place among all that they capture.
    """
    bare = node
    if any(True for _ in bodies(node)):
        bare = onnx.NodeProto()
        bare.attribute.extend(node.attribute)
        outer = {name: f"outer {place}" for place, name in enumerate(captures(node))}
        for body in bodies(bare):
            _rename(body, outer)
    return b"".join(each.SerializeToString(deterministic=True) for each in bare.attribute)


def _rename(body: onnx.GraphProto, outer: Mapping[str, str]) -> None:
    """Rename all values by where they are defined, in place. Other names and texts are left out."""
    made = (name for node in body.node for name in node.output)
    own = [*(each.name for each in (*body.input, *body.initializer)), *made]
    own += sorted(defines(body) - {*own})  # those of sparse initializers
    names = {**outer, **{name: f"{len(outer)}.{place}" for place, name in enumerate(own) if name}}
    del body.value_info[:], body.metadata_props[:]
    body.name = body.doc_string = ""
    for each in (*body.input, *body.initializer, *body.output):
        each.name = names.get(each.name, each.name)
    for sparse in body.sparse_initializer:
        sparse.values.name = names[sparse.values.name]
    for node in body.node:
        node.name = node.doc_string = ""
        del node.metadata_props[:]
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for inner in bodies(node):
            _rename(inner, names)
