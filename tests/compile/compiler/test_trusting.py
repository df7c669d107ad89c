"""At first what is known of kernels counts, in whatever circumstances it was measured."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from collage.compiler.passes.trusting import Trusting
from collage.compiler.state import Compilation, Context
from collage.errors import NoPlacementError
from tests.compiler.null import Made, each_node


@dataclass(frozen=True)
class Looks:
    """A pass that notes whether the measurer trusts what it knows, and finds no placement if it ``fails``."""

    made: Made
    fails: bool = False
    seen: list[bool] = field(default_factory=list)

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        self.seen.append(self.made.measurer.trusts)
        if self.fails:
            raise NoPlacementError("nothing")
        return compilation


def test_its_passes_trust_and_later_ones_do_not() -> None:
    made = Made(each_node("one", 1.0))
    first, second, later = Looks(made), Looks(made), Looks(made)
    found = Trusting((first, second))(made.context, made.start)
    assert later(made.context, found) is made.start
    assert (first.seen, second.seen, later.seen) == ([True], [True], [False])


def test_nobody_trusts_after_a_pass_that_fails() -> None:
    made = Made(each_node("one", 1.0))
    with pytest.raises(NoPlacementError):
        Trusting((Looks(made, fails=True),))(made.context, made.start)
    assert not made.measurer.trusts
