"""Classifiers of ai.onnx.ml give the numbers of their labels, from which texts are looked up."""

from __future__ import annotations

import numpy as np

from ...ir import No
from ..pattern import rule

_NUMBERS = {
    "TreeEnsembleClassifier": "classlabels_int64s",
    "LinearClassifier": "classlabels_ints",
    "SVMClassifier": "classlabels_ints",
}
"""The attribute that holds an operator's labels where they are whole numbers."""


@rule(
    lambda op, x: op("ai.onnx.ml::TreeEnsembleClassifier")(x),
    lambda op, x: op("ai.onnx.ml::LinearClassifier")(x),
    lambda op, x: op("ai.onnx.ml::SVMClassifier")(x),
)
def pull_label_texts(op, x, root):
    """Labels that are texts are picked by their numbers, so that the classifier itself computes no texts."""
    texts, name = root.attrs.get("classlabels_strings"), _NUMBERS[root.op_type]
    if not texts or root.attrs.get(name):
        return None
    if len(texts) < 2 or (len(texts) > 2 and len(root.attrs.get("intercepts") or ()) == 1):
        return No("its labels are not those of its scores")
    if len(root.outputs) != 2:
        return No("it has not both of its outputs")
    numbers, scores = op.again(
        root, x, classlabels_strings=None, **{name: np.arange(len(texts)).tolist()}
    )
    return op.Gather(op.constant(np.array(texts, object), name="labels"), numbers), scores


EXTENDED = (pull_label_texts,)
