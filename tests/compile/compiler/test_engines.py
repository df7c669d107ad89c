"""Engines on the whole model, with made-up trials: forms, profiles, and what is told if nobody runs it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import onnx
import pytest

from collage.compiler.plan import FOLDED, Whole
from collage.compiler.propose.engines import engines, engines_folded, profiles
from collage.compiler.whole_bench import WholeBench
from collage.errors import ModelError
from tests.helpers.compiler.null import Made, NullBackend, NullEngine, NullEngines, chain

FAST, SLOW = "fast, as written", "slow, as written"


def made(**us: float) -> Made:
    """Engines that take these microseconds, by the plan's label with underscores."""
    named = {label.replace("__", ", ").replace("_", " "): each for label, each in us.items()}
    both = NullEngine("slow", ["", "turbo"]), NullEngine("fast", ["", "calm"])
    return Made({}, *both, NullBackend("lib"), engines=named)


def labels(each: Made) -> list[str]:
    return [plan.label for plan in each.best.everything()]


def test_those_that_are_right_run_and_the_others_say_why() -> None:
    each = made(slow__as_written=9.0, fast__as_written=4.0)
    each.engines.wrong["fast, as written"] = "inaccurate"
    each.run(engines)
    assert labels(each) == [SLOW] and each.engines.turns == [SLOW] * 3
    assert each.whole.found.refused == {FAST: "inaccurate"}
    assert each.bench.known.engine_us == {Whole("slow"): 9.0}


def test_the_folded_model_and_other_profiles_are_tried_where_an_engine_is_faster() -> None:
    each = made(
        slow__as_written=9.0,
        slow__folded=8.0,
        slow__folded__turbo=7.0,
        slow__as_written__turbo=1.0,
        fast__as_written=4.0,
        fast__as_written__calm=3.0,
    )
    each.bench.__dict__["_imported"] = replace(each.bench.imported, folded=chain())
    each.run(engines, engines_folded, profiles)
    assert labels(each) == [
        "fast, as written, calm",
        FAST,
        "slow, folded, turbo",
        "slow, folded",
        SLOW,
    ]
    assert "slow, as written, turbo" not in each.engines.trials
    assert Whole("slow", FOLDED, "turbo") in each.best.everything()


def test_a_form_that_no_engine_takes_is_left_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the model without the shapes that were written into it."""
    each = made()
    written = chain()
    written.producer_name = "its author"
    other = WholeBench(each.task, each.database, cast(Any, None), each.bench.show, form_of(each, written))
    tools = NullEngines({SLOW: 7.0}, each.step)
    other._engines = cast(Any, tools)
    before = each.engines
    monkeypatch.setattr(WholeBench, "others", lambda self: [other])
    each.run(engines)
    assert labels(each) == [SLOW]
    assert each.bench.whole is other and before.closed
    found = each.compiled()
    assert found.plan == Whole("slow")
    assert each.bench.whole.form.original.producer_name == "its author"


def form_of(each: Made, model: onnx.ModelProto) -> Any:
    return replace(each.whole.form, original=model)


def test_without_a_graph_the_reason_is_told_with_those_of_the_engines() -> None:
    each = made()
    each.bench.why_no_graph = ModelError("TVM cannot import Pow.")
    words = r"TVM cannot import Pow\. And no engine.*slow, as written: no Relu; fast, as written: no Relu"
    with pytest.raises(ModelError, match=words):
        each.compiled()
    each = made(fast__as_written=4.0)
    each.bench.why_no_graph = ModelError("TVM cannot import Pow.")
    assert each.compiled().plan == Whole("fast")
    assert each.measurer.asked == []
