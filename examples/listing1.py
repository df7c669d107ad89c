"""Listing 1 of the Collage paper (PACT'22), as printed: the two ways to tell Collage what a backend can run.

Run it to see which patterns the rule generates on a small network (Figure 2.4).
"""

import collage
from collage import is_op, wildcard

# [Method 1] Explicit pattern specification
# Pattern language to describe conv2d + add + relu.
conv = is_op('conv2d')(wildcard(), wildcard())
conv_constr = conv.has_attr({"data_layout": "NCHW"})
conv_add = is_op('add')(conv_constr, wildcard())
conv_add_relu = is_op('relu')(conv_add)

# Introduce new backend pattern to Collage.
collage.add_backend_pattern(backend='cuDNN',
                            pattern=conv_add_relu)


# [Method 2] Pattern rule specification
class MyPatternRule(collage.BasePatternRule):
    # Define variables
    kFusable = 0
    kElemwise = 1
    # ...
    # Checker for the supported operators.
    @staticmethod
    def op_rule(op):
        if op.name == "dense":
            # Dense operator is always supported.
            return True
        elif op.name == "conv2d":
            # constraints can be verified as well.
            return op.attr["data_layout"] == "NCHW"
        # ... rest of the op rule ...
        elif op.name in ("add", "relu", "tanh"):
            return True
        return False

    # Checker for fusion patterns.
    # -- cur_type: type of current fusion group
    # -- src: seed operator node
    # -- sink: post-dominator of src
    @staticmethod
    def fusion_rule(cur_type, src, sink):
        # If current fusion group contains
        # at least one conv/matmul (kFusable)
        if cur_type == MyPatternRule.kFusable:
            # Helper functions can be defined.
            def fchecker(node_pattern):
                return (node_pattern == MyPatternRule.kElemwise)
            # Check if every operator between src and sink.
            # Helper function can be passed as a checker.
            if collage.check_path(src, sink, fchecker):
                return True
        # ... rest of the fusion rule ...
        return False


# Introduce new pattern generation rule to Collage.
collage.add_backend_pattern_rule(backend='TVM',
                                 pattern_rule=MyPatternRule())


def main() -> None:
    """Print what the generator finds on Figure 2.4's network."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    from collage.frontend.model import import_model
    from collage.patterns.context import MatchContext

    weight = numpy_helper.from_array(np.ones((8, 3, 3, 3), np.float32), "w")
    dense = numpy_helper.from_array(np.ones((30, 5), np.float32), "d")
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
            helper.make_node("Relu", ["c"], ["r"], "relu"),
            helper.make_node("Tanh", ["r"], ["t"], "tanh"),
            helper.make_node("MatMul", ["t", "d"], ["y"], "dense"),
        ],
        "figure_2_4",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 32, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 30, 5])],
        [weight, dense],
    )
    proto: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    context = MatchContext(import_model(proto))
    for source in collage.default_registry().patterns.sources("TVM"):
        for found in source.find(context):
            print(found.nodes, found.pattern, found.reason)
    for source in collage.default_registry().patterns.sources("cuDNN"):
        print([found.nodes for found in source.find(context)])


if __name__ == "__main__":
    main()
