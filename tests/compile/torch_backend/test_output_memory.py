"""Outputs of subgraphs that share memory."""

from __future__ import annotations

import pytest

from collage.torch_backend.dynamo_graph import NotCompiledError
from collage.torch_backend.output_memory import Alias, Fresh, NoTensor, assembled, output_memory

torch = pytest.importorskip("torch")


def test_outputs_are_laid_out_as_in_pytorch() -> None:
    x = torch.arange(24.0).reshape(4, 6)
    y = torch.sin(x)
    halves = torch.cos(x).chunk(2, 1)
    outputs = [x, x[1:], y.t(), y[2], *halves, torch.exp(x[:1]).expand(3, 6), None, torch.zeros(0, 3)]
    found = output_memory([x], outputs)
    assert [type(each) for each in found] == [Alias, Alias, Fresh, Alias, Fresh, Fresh, Fresh, NoTensor, Fresh]
    made = [each.contiguous() for each, layout in zip(outputs, found, strict=True) if isinstance(layout, Fresh)]
    again = assembled(found, [x], made)
    for actual, expected in zip(again, outputs, strict=True):
        if expected is None:
            assert actual is None
        else:
            torch.testing.assert_close(actual, expected, check_stride=True)
    assert again[0] is x
    again[2].zero_()
    assert not again[3].any() and again[4].any()


def test_inputs_that_begin_elsewhere() -> None:
    """A later call has its input at another place of its memory."""
    first, later = torch.randn(10)[2:6], torch.randn(10)[5:9]
    found = output_memory([first], [first[1:3]])
    (view,) = assembled(found, [later], [])
    assert view.data_ptr() == later[1:3].data_ptr()


def test_what_cannot_be_laid_out() -> None:
    y = torch.randn(4, 6)
    with pytest.raises(NotCompiledError, match="two outputs share a part of their memory"):
        output_memory([], [y[1:], y[:-1]])
    with pytest.raises(NotCompiledError, match="have different dtypes"):
        output_memory([], [y, y.view(torch.int32)])
    with pytest.raises(NotCompiledError, match="and another dtype"):
        output_memory([y], [y.view(torch.int32)])
    with pytest.raises(NotCompiledError, match="a view of inputs that share memory"):
        output_memory([y[0], y[1]], [y[0][1:]])
