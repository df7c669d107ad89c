"""A compiled module as a service uses it: loaded by several processes, called from many threads, and very often."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from collage.kernel.target import usable_cores
from collage.module.file import read_summary
from scripts.lib.service.allocations import count
from scripts.lib.service.callers import call_from_threads, call_many_times
from scripts.lib.service.files import load_one, several
from scripts.lib.service.loading import load_in_processes, shared_against_own
from scripts.lib.service.overhead import call_overhead


def overheads() -> dict[str, Any]:
    """The cost of a call without its kernels, with one thread and with all threads."""
    found = [call_overhead(threads) for threads in sorted({1, usable_cores()})]
    for each in found:
        for way, times in each["ways"].items():
            _say(
                f"{each['kernels']} empty kernels, {each['threads']} threads, {way}: {times['median_us']} us"
            )
    return {"overhead": found}


def measure(file: Path, threads: int, seconds: float, calls: int) -> dict[str, Any]:
    """Load the module, call it from ``threads`` threads for ``seconds``, and ``calls`` times in a row.

    Raises CollageError.
    """
    if read_summary(file).shaped:
        raise several(file)
    found: dict[str, Any] = {"file": str(file), "loading": [], "callers": []}
    for verify in (False, True):
        each = load_in_processes(file, 2, verify=verify)
        found["loading"].append(each)
        for times, memory in zip(each["times"], each["memory"], strict=True):
            _say(
                f"{'verified ' if verify else ''}load {times['load_s']} s, first run {times['first_run_s']} s; "
                f"resident {_mib(memory['Rss'])}, its share of it {_mib(memory['Pss'])}, "
                f"its own {_mib(memory['Private_Clean'] + memory['Private_Dirty'])}"
            )
    found["weights"] = shared_against_own(file, min(10.0, seconds))
    _say("a run: " + ", ".join(f"weights {name} {us} us" for name, us in found["weights"].items()))
    found["allocations"] = count(file)
    _say(f"between the first kernel and the last: {found['allocations']}")
    module = load_one(file)
    for clones in (False, True):
        each = call_from_threads(module, threads, seconds, clones=clones)
        found["callers"].append(each)
        _say(
            f"{threads} threads {'on clones' if clones else 'on one module'}: calls {each['calls']}, "
            f"most/fewest {each['ratio']}, wrong {each['wrong']}, resident {_mib(each['resident_before'])} -> "
            f"{_mib(each['resident_after'])}"
        )
    found["many"] = each = call_many_times(module, calls)
    _say(f"{each['calls']} calls: resident {_mib(each['resident_before'])} -> {_mib(each['resident_after'])}")
    return found


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
