"""The sweep: each family is exported by each exporter, and each export is checked."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scripts.lib.families.names import MODEL
from scripts.lib.families.processes import Server
from scripts.lib.families.rows import NO_EXPORT, WRONG, Row
from scripts.lib.families.table import Family


@dataclass(frozen=True)
class Places:
    """``exports`` is where exported files go, as FAMILY/EXPORTER/model.onnx; they stay there if ``keep``.

    ``scratch`` is a folder for what is temporary, and ``database`` the one of measurements.
    """

    exports: Path
    keep: bool
    scratch: Path
    database: Path


@dataclass(frozen=True)
class Sweep:
    """Exports and checks, each at most ``limit_s`` seconds long."""

    exports: Server
    checks: Server
    places: Places
    limit_s: float

    def rows(self, families: Sequence[Family], exporters: Sequence[str]) -> Iterator[Row]:
        """A row for each export. Files that are there already are not exported again."""
        for family in families:
            for exporter in exporters:
                start = time.monotonic()
                row = self._row(family, exporter)
                yield replace(row, seconds=round(time.monotonic() - start, 1))
            if not self.places.keep:
                shutil.rmtree(self.places.exports / family.name, ignore_errors=True)

    def _row(self, family: Family, exporter: str) -> Row:
        folder = self.places.exports / family.name / exporter
        if not (folder / MODEL).exists() and (problem := self._export(family.name, exporter, folder)):
            return Row(family.name, exporter, NO_EXPORT, problem)
        found = self.checks.ask(
            {
                "model": str(folder / MODEL),
                "max_length": family.max_length,
                "database": str(self.places.database),
                "scratch": str(self.places.scratch),
                "limit_s": self.limit_s,
            }
        )
        if "ended" in found:
            return Row(family.name, exporter, WRONG, found["ended"])
        return Row(family.name, exporter, found["verdict"], found["about"], found["error"])

    def _export(self, family: str, exporter: str, folder: Path) -> str:
        """Export into the folder, which is made when all is there. Returns what went wrong, or ""."""
        unfinished = self.places.scratch / "export"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        request = {
            "family": family,
            "exporter": exporter,
            "folder": str(unfinished),
            "limit_s": self.limit_s,
        }
        answer = self.exports.ask(request)
        if problem := str(answer.get("ended") or answer["problem"]):
            return problem
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.move(unfinished, folder)
        return ""
