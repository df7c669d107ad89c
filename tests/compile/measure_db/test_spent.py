"""Where the time of measuring goes."""

from __future__ import annotations

import time

from collage.check.spent import BUILD, CHECK, spent, taken


def test_work_inside_other_work_counts_once() -> None:
    taken()
    with spent(BUILD):
        time.sleep(0.02)
        with spent(CHECK):
            time.sleep(0.05)
    found = taken()
    assert set(found) == {BUILD, CHECK}
    assert found[CHECK] >= 0.05
    assert 0.02 <= found[BUILD] < found[CHECK]
    assert taken() == {}
