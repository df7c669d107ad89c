"""What libraries say, without what tells users nothing."""

from __future__ import annotations

from collage.core.library_text import library_text


def test_places_in_sources_are_left_out() -> None:
    said = """[ONNXRuntimeError] : 1 : FAIL : Load model from the model failed:
    /onnxruntime_src/onnxruntime/core/graph/graph.cc:1327
    onnxruntime::Graph::Graph(const onnxruntime::Model&, std::unordered_map<std::__cxx11::basic_string<char>, int>&,
    bool) [ONNXRuntimeError] : 1 : FAIL : Tensor element type 19 is not known"""
    short = library_text(said)
    assert "onnxruntime_src" not in short
    assert "Graph::Graph" not in short
    assert short.endswith("Tensor element type 19 is not known")
    said = (
        "Exception from src/inference/src/cpp/core.cpp:105:\nCheck 'false' failed at "
        "src/frontends/common_translators/src/unconverted_ops_report.cpp:151:\nModel wasn't fully converted."
    )
    assert library_text(ValueError(said)) == "Model wasn't fully converted."
