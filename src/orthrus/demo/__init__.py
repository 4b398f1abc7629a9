"""A small trained model and images it has not seen, shipped with the package for `orthrus demo`.

`digits.onnx` takes `image`, float32 [N, 1, 8, 8] with pixels of 0 to 16, and gives `label`, int64 [N], and
`probability`, float32 [N, 10]. `examples/train_digits.py` made both files; the images are scikit-learn's
digits, BSD licence.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parent
MODEL = FOLDER / "digits.onnx"


def samples() -> tuple[np.ndarray, np.ndarray]:
    """The held-out images, float32 [360, 1, 8, 8], and their labels, int64 [360]."""
    with np.load(FOLDER / "digits.npz", allow_pickle=False) as stored:
        return stored["image"].astype(np.float32), stored["label"].astype(np.int64)
