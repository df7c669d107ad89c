"""A fork inherits locks that threads of its parent held: none of Collage's may stay locked for ever."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

MODULES = """
import importlib, importlib.util, os, pkgutil, threading
import collage
left_out = () if importlib.util.find_spec("torch") else ("collage.windtunnel",)  # which needs its extra
for each in pkgutil.walk_packages(collage.__path__, "collage."):
    if not each.name.rpartition(".")[2].startswith("_") and not each.name.startswith(left_out):
        importlib.import_module(each.name)
import sys
kinds = (type(threading.Lock()), type(threading.RLock()), threading.Condition)

def locks():
    return {
        (name, attribute): value
        for name, module in list(sys.modules.items()) if name.partition(".")[0] == "collage"
        for attribute, value in list(vars(module).items()) if isinstance(value, kinds)
    }

assert len(locks()) >= 2, locks()
holder = threading.Thread(target=lambda: [each.acquire() for each in locks().values()])
holder.start()
holder.join()
child = os.fork()
if not child:
    held = [place for place, each in locks().items() if not each.acquire(timeout=0.1)]
    print(*held, flush=True)
    os._exit(len(held))
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

FALLBACK = """
import os, threading
from collage.runtime.original import Fallback
fallback = Fallback(b"", (), (), 1)
holder = threading.Thread(target=fallback._original._lock.acquire)  # as while it loads the model
holder.start()
holder.join()
child = os.fork()
if not child:
    threading.Timer(5, os._exit, [1]).start()
    told = []
    fallback.tell_once(lambda: told.append(True))
    assert told
    os._exit(0)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def run(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_lock_of_a_module_stays_locked() -> None:
    run(MODULES)


def test_the_lock_of_a_fallback_does_not_stay_locked() -> None:
    run(FALLBACK)
