"""What the page shows: contenders, runners-up, candidates and time line as plain values, and the page's safety."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from importlib.resources import files

import pytest

from collage.graph.dataflow import TensorType
from collage.report.page_data import ShownModule, module_data, page_data
from collage.report.report import CandidateReport, Report
from collage.report.show_html import VENDORED, as_page
from collage.report.time_line import time_line
from collage.schedule.program import Port, make_program
from collage.schedule.region import Region
from tests.helpers.made_up_modules import layers, lost, made_up

MOST_BYTES = 1_000_000


def test_contenders_are_the_module_and_each_engine() -> None:
    shown = made_up(["a"])
    found = module_data(shown).contenders
    assert [(each.label, round(each.times, 2), each.ours) for each in found] == [
        ("This module", 1.0, True),
        ("OpenVINO", 1.3, False),
        ("ONNX Runtime", 1.48, False),
    ]
    assert found[1].noise_us == shown.report.finalists["openvino, folded"]["noise_us"]
    us = {"openvino": shown.report.measured_us, "onnxruntime": 2 * shown.report.measured_us}
    whole = replace(shown.report, runs_on="openvino", engines=us)
    found = module_data(replace(shown, report=whole)).contenders
    assert [each.label for each in found] == ["This module (OpenVINO on the whole model)", "ONNX Runtime"]


def test_runners_up_are_for_the_same_operators() -> None:
    shown = made_up(["a", "b"])
    dearest = max(shown.program.regions, key=lambda region: region.cost_us)
    wider = CandidateReport((0, 1), "wide", "rule", cost_us=1.0, loss_us=0.1)
    close = CandidateReport(dearest.nodes, "lost", "rule", least_us=1.0, **lost(dearest.cost_us * 0.1))
    report = replace(shown.report, candidates=[*shown.report.candidates, wider, close])
    found = module_data(replace(shown, report=report)).costly[0].runner_up
    assert found is not None
    assert (found.backend, round(found.times, 3), found.at_least) == ("lost", 1.1, True)


def test_candidates_are_stored_once_and_all_are_there() -> None:
    shown = made_up(layers(3, 4))
    found = module_data(shown)
    explained = shown.report.explain(shown.program.regions)
    for node, rows in zip(explained, found.covering, strict=True):
        verdicts = sorted(found.texts[int(found.candidates[row][4] or 0)] for row in rows)
        assert verdicts == sorted(each["verdict"] for each in node["candidates"])
        assert found.texts[int(found.candidates[rows[0]][4] or 0)] == "chosen"
    assert len(found.candidates) == len(set(found.candidates))


def test_old_files_have_no_types() -> None:
    report = made_up(["a"]).report
    data = report.to_json()
    del data["nodes"][0]["types"]
    assert Report.from_json(data).nodes[0].types == ()


def test_time_line_with_threads_that_wait() -> None:
    kind = TensorType((4,), "float32")
    alone = {"threads": 1}
    regions = [
        Region("a", ("op",), (0,), ("a",), (0,), (1,), cost_us=10.0, threads=2),
        Region("a", ("op",), (1,), ("b",), (1,), (2,), cost_us=5.0, stream=0, **alone),
        Region("a", ("op",), (2,), ("c",), (1,), (3,), cost_us=20.0, stream=1, **alone),
        Region("a", ("op",), (3,), ("d",), (2, 3), (4,), cost_us=1.0, threads=2),
    ]
    types = dict.fromkeys(range(5), kind)
    found = time_line(make_program(regions, [Port("x", 0, kind)], [Port("y", 4, kind)], types, threads=2))
    assert found.rows == ("thread 0", "thread 1")
    assert [(each.region, each.first, each.end, each.start_us, each.end_us) for each in found.bars] == [
        (0, 0, 2, 0.0, 10.0),
        (1, 0, 1, 10.0, 15.0),
        (2, 1, 2, 10.0, 30.0),
        (3, 0, 2, 30.0, 31.0),
    ]
    assert [(each.row, each.start_us, each.end_us) for each in found.waits] == [(0, 15.0, 30.0)]
    assert found.end_us == 31.0


def test_vendored_libraries_are_what_their_list_says() -> None:
    folder = files("collage.report").joinpath("page/vendor")
    listed = json.loads(folder.joinpath("vendor.json").read_text())
    assert [each["file"].partition(".")[0] for each in listed] == [*VENDORED]
    for each in listed:
        content = folder.joinpath(each["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == each["sha256"]
        assert len(content) < MOST_BYTES
        assert "Permission is hereby granted" in folder.joinpath(each["licence_file"]).read_text()


@pytest.fixture
def nasty() -> ShownModule:
    return made_up(["</script><script>alert(1)</script>", "{{data}}", "\u202eabc\x1b[31m", "<!--"])


def test_a_page_runs_its_own_scripts_only(nasty: ShownModule) -> None:
    text = as_page([nasty])
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digests = {base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in scripts}
    assert {f"'sha256-{each}'" for each in digests} == set(re.findall("'sha256-[^']*'", policy[1]))
    assert "default-src 'none'" in policy[1]
    assert "alert(1)</script>" not in text
    assert not {"\u202e", "\x1b"} & {*text}


def test_the_data_of_a_page_is_whole(nasty: ShownModule) -> None:
    odd = replace(nasty, report=replace(nasty.report, engines={"openvino": float("nan")}))
    data = json.loads(as_page([odd]).partition('id="data">')[2].partition("</script>")[0])
    assert data["modules"][0]["names"][1][1] == "{{data}}"
    assert None in [each["us"] for each in data["modules"][0]["contenders"]]
    assert page_data([nasty, nasty]).modules[0].title != ""
