"""The size of the machine's memory."""

from __future__ import annotations

import os


def physical_bytes() -> int:
    """Size of this machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
