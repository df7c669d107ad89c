"""A translated network beside its pipeline, on rows."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import numpy as np
import torch

from collage.core.library_text import library_text
from collage.errors import ModelError
from collage.windtunnel.data import Reader
from collage.windtunnel.heads import Head
from collage.windtunnel.modules.part import Network

log = logging.getLogger(__name__)

ROWS = 1000
_MOST = 1e-4
"""Of probabilities; of other numbers in units of the largest one."""
_NUDGE = 1e-6
"""A number that another rounding moves past a threshold is a tie, and no error."""
_SHARE = 0.005
"""Of rows that may differ, for ties in what operators make of numbers."""


def check_equal(pipeline: Any, network: Network, head: Head, reader: Reader, frame: Any) -> None:
    """Raise ModelError if the network of a pipeline, before its fine-tuning, gives other numbers than the pipeline.

    A pipeline that does not take the rows cannot be compared, which is logged.
    """
    frame = frame[: ROWS * (len(frame) // ROWS)][:: len(frame) // ROWS] if len(frame) > ROWS else frame
    given = frame
    names = getattr(pipeline, "feature_names_in_", ())
    if len(names) and hasattr(frame, "iloc") and set(names) <= set(frame.columns):
        given = frame[list(names)]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of names and of unseen categories
            wanted = _of_pipeline(pipeline, head, given)
    except Exception as error:  # operators raise anything for rows that they do not like
        log.warning("the pipeline does not take these rows, and is not compared: %s", library_text(error))
        return
    numbers, codes = reader.inputs(frame)
    network.eval()
    apart = np.full(wanted.shape, np.inf)
    with torch.no_grad():
        for nudge in (0.0, _NUDGE, -_NUDGE):
            scores = network(numbers * (1 + nudge), codes).double()
            apart = np.minimum(apart, np.abs(_of_scores(head, scores).reshape(wanted.shape) - wanted))
    is_likely = head.kind == "classifier" and head.link != "margin"
    size = 1.0 if is_likely or not wanted.size else float(np.abs(wanted).max())
    many = int((~(apart <= _MOST * size)).reshape(len(apart), -1).any(1).sum())
    if many > _SHARE * len(apart):
        raise ModelError(
            f"the network gives other numbers than the pipeline on {many} of {len(apart)} rows, by up to "
            f"{apart.max():.2g}: if the pipeline was fitted again since, translate it again; else this is a bug of "
            "WindTunnel, or of a converter of yours."
        )


def _of_pipeline(pipeline: Any, head: Head, rows: Any) -> Any:
    """Probabilities, one-hot labels of a classifier without, or predictions."""
    if head.kind == "classifier" and head.link != "margin":
        return np.asarray(pipeline.predict_proba(rows), np.float64)
    if head.kind == "classifier":
        return (np.asarray(pipeline.predict(rows))[:, None] == np.asarray(head.classes)).astype(np.float64)
    return np.asarray(pipeline.predict(rows), np.float64)


def _of_scores(head: Head, scores: Any) -> Any:
    if head.kind == "classifier" and head.link != "margin":
        return head.probabilities(scores).numpy()
    if head.kind == "classifier":
        return (head.predict(scores)[:, None] == np.asarray(head.classes)).astype(np.float64)
    return head.predict(scores)
