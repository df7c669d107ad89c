"""The checks, as a process of its own: a kernel that corrupts the context costs the checks after it, and no more."""

from __future__ import annotations

import sys
from pathlib import Path

from scripts.lib.gpu.checks import checks
from scripts.lib.gpu.fragment import Fragment
from scripts.lib.gpu.machine import machine


def main() -> None:
    """Run all checks, and write to the file that is given."""
    fragment = Fragment(Path(sys.argv[1]))
    fragment.step("machine", machine)
    for name, check in checks().items():
        fragment.step(name, check)


if __name__ == "__main__":
    main()
