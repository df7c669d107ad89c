"""What the scripts run: one module or package for each of them, and what several share.

The files beside this folder only find the repository and call ``main``, so that types and imports are checked here.
What measures a user's own model is in ``collage.bench``; this folder has what needs the repository: the paper's
workloads, studies of Collage itself, and checks of its promises.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The root of the repository."""
