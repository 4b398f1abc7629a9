"""Samples of operators on images, boxes and signals, of losses, and of what models keep between tokens.

As in `layers`: (inputs, attributes) or (inputs, attributes, number of outputs).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .draw import Draw, Made, ints, sampled
from .layers import WIDE

F32 = np.dtype(np.float32)


@sampled("AffineGrid", "float", "double")
def affine_grid(d: Draw) -> Iterator[Made]:
    yield [d(2, 2, 3), ints(2, 3, 4, 5)], {}
    yield [d(2, 2, 3), ints(2, 3, 4, 5)], {"align_corners": 1}
    yield [d(1, 3, 4), ints(1, 2, 3, 4, 5)], {}


@sampled("CenterCropPad", "float", "int32")
def center_crop_pad(d: Draw) -> Iterator[Made]:
    yield [d(7, 5, 3), ints(5, 8, 3)], {}
    yield [d(7, 5, 3), ints(4, 4)], {"axes": [-3, 1]}


@sampled("Col2Im", *WIDE)
def col2im(d: Draw) -> Iterator[Made]:
    yield [d(1, 5, 5), ints(5, 5), ints(1, 5)], {}
    yield [d(2, 18, 4), ints(6, 6), ints(3, 3)], {"strides": [3, 3]}
    yield [d(1, 9, 25), ints(5, 5), ints(3, 3)], {"pads": [1, 1, 1, 1]}


@sampled("DeformConv", *WIDE)
def deform_conv(d: Draw) -> Iterator[Made]:
    yield [d(1, 2, 5, 5), d.small(3, 2, 2, 2), d.small(1, 8, 4, 4)], {"kernel_shape": [2, 2]}
    yield ([d(1, 2, 5, 5), d.small(3, 2, 3, 3), d.small(1, 18, 5, 5), d(3), d.positive(1, 9, 5, 5)],
           {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]})


@sampled("GlobalLpPool", *WIDE)
def global_lp_pool(d: Draw) -> Iterator[Made]:
    yield [d(2, 3, 4, 5)], {}
    yield [d(1, 3, 7)], {"p": 1}


@sampled("MaxRoiPool", "float", "double")
def max_roi_pool(d: Draw) -> Iterator[Made]:
    boxes = np.array([[0, 0, 0, 4, 4], [0, 1, 2, 5, 5]], d.dtype)
    yield [d(1, 2, 6, 6), boxes], {"pooled_shape": [2, 2]}
    yield [d(1, 2, 6, 6), 2 * boxes], {"pooled_shape": [3, 2], "spatial_scale": 0.5}


@sampled("RoiAlign", *WIDE)
def roi_align(d: Draw) -> Iterator[Made]:
    boxes = np.array([[0, 0, 4, 4], [1.5, 0.5, 5, 3.5]], d.dtype)
    for more in ({}, {"sampling_ratio": 2, "spatial_scale": 0.5}, {"mode": "max"},
                 {"coordinate_transformation_mode": "output_half_pixel"}):
        yield [d(2, 3, 6, 6), boxes, ints(0, 1)], {"output_height": 3, "output_width": 2, **more}


@sampled("MaxUnpool", *WIDE)
def max_unpool(d: Draw) -> Iterator[Made]:
    places = ints(0, 3, 10, 15).reshape(1, 1, 2, 2)
    yield [d(1, 1, 2, 2), places], {"kernel_shape": [2, 2], "strides": [2, 2]}
    yield [d(1, 1, 2, 2), places, ints(1, 1, 5, 5)], {"kernel_shape": [2, 2], "strides": [2, 2]}


@sampled("NonMaxSuppression", "float")
def non_max_suppression(d: Draw) -> Iterator[Made]:
    corners = d.positive(1, 6, 2)
    boxes = np.concatenate([corners, corners + d.positive(1, 6, 2)], -1)
    scores = d.rng.random((1, 2, 6)).astype(F32)
    yield [boxes, scores, ints(3), np.array([0.5], F32), np.array([0.1], F32)], {}
    yield [boxes, scores, ints(4), np.array([0.3], F32)], {"center_point_box": 1}
    yield [boxes, scores], {}


@sampled("DFT", "float", "double")
def dft(d: Draw) -> Iterator[Made]:
    yield [d(1, 10, 6, 1), None, ints(1).reshape(())], {}
    yield [d(1, 10, 6, 1), None, ints(1).reshape(())], {"onesided": 1}
    yield [d(2, 8, 2), None, ints(1).reshape(())], {"inverse": 1}
    yield [d(2, 8, 2), ints(5).reshape(()), ints(1).reshape(())], {}


@sampled("STFT", "float", "double")
def stft(d: Draw) -> Iterator[Made]:
    yield [d(1, 32, 1), ints(4).reshape(()), d.positive(8)], {}
    yield [d(2, 32, 1), ints(8).reshape(()), None, ints(16).reshape(())], {"onesided": 0}


@sampled("HannWindow", "int64")
@sampled("HammingWindow", "int64")
@sampled("BlackmanWindow", "int64")
def window(d: Draw) -> Iterator[Made]:
    yield [ints(10).reshape(())], {}
    yield [ints(9).reshape(())], {"periodic": 0}


@sampled("MelWeightMatrix", "int64")
def mel_weights(d: Draw) -> Iterator[Made]:
    hertz = [np.array(value, F32) for value in (0, 4000)]
    yield [*(ints(n).reshape(()) for n in (8, 16, 8000)), *hertz], {}


@sampled("NegativeLogLikelihoodLoss", *WIDE)
def likelihood_loss(d: Draw) -> Iterator[Made]:
    for reduction in ("mean", "sum", "none"):
        yield [d(3, 5), d.below(5, 3)], {"reduction": reduction}
    yield [d(2, 5, 4), d.below(5, 2, 4), d.positive(5)], {"ignore_index": 1}


@sampled("SoftmaxCrossEntropyLoss", *WIDE)
def cross_entropy_loss(d: Draw) -> Iterator[Made]:
    for reduction in ("mean", "sum", "none"):
        yield [d(3, 5), d.below(5, 3)], {"reduction": reduction}
    yield [d(2, 5, 4), d.below(5, 2, 4), d.positive(5)], {"ignore_index": 1}, 2


@sampled("TensorScatter", *WIDE)
def tensor_scatter(d: Draw) -> Iterator[Made]:
    yield [d(2, 3, 6, 4), d(2, 3, 2, 4), ints(0, 3)], {}
    yield [d(2, 6, 4), d(2, 2, 4), ints(5, 1)], {"mode": "circular"}


@sampled("CausalConvWithState", *WIDE)
def causal_conv(d: Draw) -> Iterator[Made]:
    yield [d(2, 3, 6), d.small(3, 1, 4)], {}, 2
    yield [d(2, 3, 6), d.small(3, 1, 4), d(3), d(2, 3, 3)], {"activation": "silu"}, 2


@sampled("BitCast", "float", "int32")
def bit_cast(d: Draw) -> Iterator[Made]:
    yield [d(3, 4)], {"to": 6 if d.dtype.kind == "f" else 1}
