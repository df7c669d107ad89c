"""Forms of a model that engines run whole."""

from __future__ import annotations

from dataclasses import replace

import onnx

from collage.compiler.whole_form import WholeForm
from tests.helpers.models import elementwise_net


def test_forms_of_one_model_share_its_bytes() -> None:
    model = elementwise_net()
    form = WholeForm(model, {}, "", 0)
    other = replace(form, reason="of another reason")
    assert other.data is form.data
    assert other.data == model.SerializeToString(deterministic=True)
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    changed.producer_name = "somebody else"
    untouched = replace(form, original=changed)
    assert untouched.data == changed.SerializeToString(deterministic=True)
    assert form.data == model.SerializeToString(deterministic=True)
