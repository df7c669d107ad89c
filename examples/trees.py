"""A pipeline of scikit-learn as a module: trained in seconds, compiled in seconds, and raced with ONNX Runtime.

It needs the extra `trees`. The data are scikit-learn's own: 1,797 images of digits, 8 x 8.

    python examples/trees.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import onnxruntime
from skl2onnx import to_onnx
from sklearn.datasets import load_digits
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import collage


def milliseconds(call: Callable[[], Any], runs: int = 50) -> float:
    """The median time of a call."""
    time.sleep(0.1)  # until threads of others do not spin
    taken = []
    for _ in range(runs):
        started = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started)
    return 1e3 * median(taken)


def main() -> None:
    """Train, compile, compare and race."""
    images, digits = load_digits(return_X_y=True)
    images = images.astype(np.float32)
    known = np.arange(len(images)) % 3 > 0
    trees = GradientBoostingClassifier(n_estimators=50, subsample=0.5, max_features="sqrt", random_state=0)
    pipeline = make_pipeline(SimpleImputer(), StandardScaler(), trees).fit(images[known], digits[known])

    module = collage.compile(pipeline)
    print(module)
    rows = images[~known]
    print(f"{np.mean(module.predict(rows) == digits[~known]):.1%} of {len(rows)} new images are right;", end=" ")
    print(f"{np.mean(module.predict(rows) == pipeline.predict(rows)):.1%} are what scikit-learn says")

    options = {"zipmap": False}
    session = onnxruntime.InferenceSession(to_onnx(pipeline, images[:1], options=options).SerializeToString())
    for some in (rows[:1], rows):
        feeds = {session.get_inputs()[0].name: some}
        ours, others = (
            milliseconds(lambda x=some: module.predict_proba(x)),
            milliseconds(lambda f=feeds: session.run(None, f)),
        )
        library = milliseconds(lambda x=some: pipeline.predict_proba(x))
        print(f"{len(some):4} rows: collage {ours:.3f} ms, ONNX Runtime {others:.3f} ms, scikit-learn {library:.3f} ms")


if __name__ == "__main__":
    main()
