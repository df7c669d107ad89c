"""Constant folding and dead-code removal, done by ONNX Runtime."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence

import onnx
import onnxruntime as ort

from collage.core.library_text import library_text
from collage.core.temporary import TemporaryFolder
from collage.errors import ModelError
from collage.frontend.ort_session import session_options
from collage.frontend.read.apart import adopted, save_model, weight_files
from collage.frontend.read.randomness import Randomness, without_idle_dropout
from collage.frontend.read.scopes import STANDARD, all_nodes, set_all
from collage.frontend.read.shapes import infer_types, model_inputs
from collage.frontend.rewrite.expand import expand
from collage.frontend.rewrite.halves import folded_in_float16
from collage.frontend.rewrite.ort_shapes import settle
from collage.frontend.rewrite.quantised import spelt_out, views_first
from collage.frontend.rewrite.recurrent import steps_spelt_out
from collage.frontend.rewrite.rounded_quotients import rounded_quotients
from collage.frontend.rewrite.value_types import Types

log = logging.getLogger(__name__)

BEFORE: Sequence[Callable[[onnx.ModelProto], onnx.ModelProto]] = (without_idle_dropout, expand, spelt_out)
"""The passes before constants are folded: they replace operators by those that define them."""
AFTER: Sequence[Callable[[onnx.ModelProto], onnx.ModelProto]] = (
    steps_spelt_out,
    views_first,
    infer_types,
)
"""The passes after it. Each returns the model itself if it has nothing to do; some change it in place."""

_EXTERNAL_ABOVE_BYTES = 1024
_INEXACT = ("DivMulFusion",)
"""Rewritings of ONNX Runtime that change the last bit, which matters for ``rounded_quotients``: z / x for 1 / x * z,
where 1 / 41 * 41 is less than 1."""


def simplify(
    model: onnx.ModelProto, *, halves: bool = False, declared: Iterable[onnx.ValueInfoProto] = ()
) -> onnx.ModelProto:
    """A new model with constants folded, BatchNormalization folded into convolutions, and types inferred.

    The passes of BEFORE, the folding by ONNX Runtime (level "basic", standard operators only) and the passes of AFTER
    run one after the other. Shapes that onnx has no rule for are taken from ONNX Runtime, or else from ``declared``,
    the types that the file declares (see ``settle``). With ``halves`` operators of float16 stay in it (see
    ``folded_in_float16``). Raises ModelError when ONNX Runtime cannot load the model.
    """
    inputs = {info.name for info in model_inputs(model)}
    for rewrite in BEFORE:
        model = rewrite(model)
    model = folded_in_float16(model, _folded) if halves else _folded(model)
    _tidy(model, inputs)
    for rewrite in AFTER:
        model = rewrite(model)
    return settle(model, declared)


def _folded(model: onnx.ModelProto) -> onnx.ModelProto:
    simple = _fold(model)
    if any(node.op_type == "Shape" and node.domain == "" for node in simple.graph.node):
        # ONNX Runtime inlines functions (such as GroupNormalization) after it has folded shapes.
        simple = _fold(simple)
    return simple


def _fold(model: onnx.ModelProto) -> onnx.ModelProto:
    with TemporaryFolder("model") as folder:
        source, target = folder / "model.onnx", folder / "simple.onnx"
        save_model(model, source)
        options = session_options()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(target)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights.bin")
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_min_size_in_bytes", str(_EXTERNAL_ABOVE_BYTES)
        )
        options.intra_op_num_threads = 1
        left_out = [*_INEXACT] if rounded_quotients(model.graph, Types.of(model.graph)) else []
        if Randomness(model).any:
            left_out.append("EliminateDropout")  # also in training mode
        try:
            ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"], disabled_optimizers=left_out)
        except Exception as error:  # ONNX Runtime's exceptions share no base class but Exception
            text = library_text(str(error).replace(str(source), "the model"))
            raise ModelError(f"ONNX Runtime cannot load the model: {text}") from error
        files = weight_files(model)
        if files is None:
            return onnx.load(str(target))
        simple = onnx.load(str(target), load_external_data=False)
        return adopted(simple, folder, files)


def _tidy(model: onnx.ModelProto, given: Collection[str]) -> None:
    """Keep only the ``given`` inputs, drop unused operator sets, and give each node a name of its own, in place.

    In models of IR version 3 initializers are inputs, too, also those that folding has made.
    """
    graph = model.graph
    set_all(graph.input, [each for each in graph.input if each.name in given])
    used = {node.domain for node in all_nodes(graph)} | {f.domain for f in model.functions}
    set_all(model.opset_import, [o for o in model.opset_import if o.domain in (*used, *STANDARD)])
    seen: set[str] = set()
    for index, node in enumerate(graph.node):
        if not node.name or node.name in seen:
            node.name = f"{node.name or node.op_type}#{index}"
        seen.add(node.name)
