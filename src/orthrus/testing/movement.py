"""Samples of operators that move, choose and count elements.

Each yields (inputs, attributes) or (inputs, attributes, number of outputs). What decides shapes (axes,
targets, pads) is among the inputs as it is in ONNX.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .draw import FLOATS, Draw, Made, ints, sampled

FEW = ("float", "double", "float16", "int32", "int64", "uint8", "bool", "string")
NUMERIC = ("float", "double", "float16", "int32", "int64")


@sampled("Identity", *FEW, "bfloat16", "int8")
def identity(d: Draw) -> Iterator[Made]:
    for shape in ((3, 5), (), (0, 3)):
        yield [d(*shape)], {}


@sampled("Transpose", *FEW, "bfloat16", "int8")
def transpose(d: Draw) -> Iterator[Made]:
    yield [d(2, 3, 4)], {}
    yield [d(2, 3, 4)], {"perm": [0, 2, 1]}
    yield [d(2, 3, 4, 5)], {"perm": [0, 2, 3, 1]}
    yield [d(0, 3)], {}
    yield [d()], {}


@sampled("Reshape", *FEW)
def reshape(d: Draw) -> Iterator[Made]:
    yield [d(2, 3, 4), ints(4, 6)], {}
    yield [d(2, 3, 4), ints(0, -1)], {}
    yield [d(0, 3), ints(3, 0)], {"allowzero": 1}
    yield [d(1), np.zeros(0, np.int64)], {}


@sampled("Flatten", *FEW)
def flatten(d: Draw) -> Iterator[Made]:
    for axis in (0, 1, 2, -1):
        yield [d(2, 3, 4)], {"axis": axis}


@sampled("Squeeze", *FEW)
def squeeze(d: Draw) -> Iterator[Made]:
    yield [d(1, 3, 1)], {}
    yield [d(1, 3, 1), ints(-1)], {}


@sampled("Unsqueeze", *FEW)
def unsqueeze(d: Draw) -> Iterator[Made]:
    yield [d(3, 4), ints(0)], {}
    yield [d(3, 4), ints(-1, 1)], {}


@sampled("Expand", *FEW)
def expand(d: Draw) -> Iterator[Made]:
    yield [d(3, 1), ints(2, 3, 4)], {}
    yield [d(1, 4), ints(1)], {}
    yield [d(1, 3), ints(0, 3)], {}


@sampled("Tile", *FEW)
def tile(d: Draw) -> Iterator[Made]:
    yield [d(2, 3), ints(2, 2)], {}
    yield [d(2, 3), ints(1, 0)], {}


@sampled("Concat", *FEW, "bfloat16", "int8")
def concat(d: Draw) -> Iterator[Made]:
    yield [d(2, 3), d(2, 5)], {"axis": 1}
    yield [d(2, 3), d(1, 3), d(4, 3)], {"axis": -2}
    yield [d(2, 3)], {"axis": 0}
    yield [d(0, 3), d(2, 3)], {"axis": 0}


@sampled("Split", *FEW)
def split(d: Draw) -> Iterator[Made]:
    yield [d(6, 2)], {"num_outputs": 3}, 3
    yield [d(2, 7)], {"axis": 1, "num_outputs": 2}, 2
    yield [d(2, 7), ints(1, 4, 2)], {"axis": -1}, 3
    yield [d(3), ints(3, 0)], {}, 2


@sampled("Slice", *FEW)
def slice_(d: Draw) -> Iterator[Made]:
    yield [d(5, 6), ints(1), ints(4)], {}
    yield [d(5, 6), ints(1, -3), ints(100, -1), ints(0, 1)], {}
    yield [d(5, 6), ints(4, 1), ints(-100, 5), ints(0, 1), ints(-1, 2)], {}
    yield [d(5, 6), ints(3), ints(3), ints(1)], {}


@sampled("Pad", *NUMERIC)
def pad(d: Draw) -> Iterator[Made]:
    yield [d(3, 4), ints(1, 0, 0, 2)], {}
    yield [d(3, 4), ints(1, 1, 1, 1), np.array(2, d.dtype)], {}
    yield [d(3, 4), ints(1, 2, 0, 1)], {"mode": "reflect"}
    yield [d(3, 4), ints(1, 2, 0, 1)], {"mode": "edge"}
    yield [d(3, 4), ints(-1, 0, 0, 1)], {}


@sampled("Gather", *FEW)
def gather(d: Draw) -> Iterator[Made]:
    yield [d(5, 3), d.below(5, 2, 2)], {}
    yield [d(5, 3), ints(-1, 0)], {"axis": 1}
    yield [d(5, 3), np.array(2)], {}
    yield [d(5, 3), np.zeros((0,), np.int64)], {}
    yield [d(5, 3), d.below(5, 4).astype(np.int32)], {}


@sampled("GatherElements", *FEW)
def gather_elements(d: Draw) -> Iterator[Made]:
    yield [d(3, 4), d.below(3, 2, 4)], {}
    yield [d(3, 4), d.below(4, 3, 2) - 4], {"axis": 1}


@sampled("GatherND", *FEW)
def gather_nd(d: Draw) -> Iterator[Made]:
    yield [d(3, 4, 2), d.below(3, 5, 2)], {}
    yield [d(2, 3, 4), d.below(3, 2, 1)], {"batch_dims": 1}


@sampled("ScatterElements", *NUMERIC)
def scatter_elements(d: Draw) -> Iterator[Made]:
    yield [d(3, 4), ints([0, 1, 2, 0]), d(1, 4)], {}
    yield [d(3, 4), ints([0, 0, 1, 2]), d(1, 4)], {"reduction": "add"}
    yield [d(3, 4), ints([0], [3], [-1]), d(3, 1)], {"axis": 1, "reduction": "max"}


@sampled("ScatterND", *NUMERIC)
def scatter_nd(d: Draw) -> Iterator[Made]:
    yield [d(5, 2), ints([1], [3]), d(2, 2)], {}
    yield [d(5, 2), ints([1, 0], [3, 1], [1, 0]), d(3)], {"reduction": "add"}


@sampled("TopK", *NUMERIC)
def top_k(d: Draw) -> Iterator[Made]:
    yield [d(3, 7), ints(3)], {}, 2
    yield [d(7, 3), ints(2)], {"axis": 0, "largest": 0}, 2


@sampled("Trilu", *NUMERIC, "bool")
def trilu(d: Draw) -> Iterator[Made]:
    yield [d(4, 5)], {}
    yield [d(2, 4, 5)], {"upper": 0}
    yield [d(4, 5), np.array(-1)], {"upper": 0}


@sampled("DepthToSpace", *NUMERIC)
def depth_to_space(d: Draw) -> Iterator[Made]:
    yield [d(1, 8, 2, 3)], {"blocksize": 2}
    yield [d(1, 8, 2, 3)], {"blocksize": 2, "mode": "CRD"}


@sampled("SpaceToDepth", *NUMERIC)
def space_to_depth(d: Draw) -> Iterator[Made]:
    yield [d(1, 2, 4, 6)], {"blocksize": 2}


@sampled("Shape", *FEW)
def shape(d: Draw) -> Iterator[Made]:
    yield [d(2, 3, 4)], {}
    yield [d(2, 3, 4)], {"start": 1, "end": -1}
    yield [d()], {}


@sampled("Size", *FEW)
def size(d: Draw) -> Iterator[Made]:
    yield [d(2, 3, 4)], {}
    yield [d(0, 3)], {}


@sampled("Range", *NUMERIC)
def range_(d: Draw) -> Iterator[Made]:
    for start, stop, step in ((0, 7, 2), (5, -2, -3), (1, 1, 1)):
        yield [np.array(v, d.dtype) for v in (start, stop, step)], {}


@sampled("ConstantOfShape", "int64")
def constant_of_shape(d: Draw) -> Iterator[Made]:
    yield [ints(2, 3)], {}
    yield [np.zeros(0, np.int64)], {}


@sampled("OneHot", "int64", "float", "int32")
def one_hot(d: Draw) -> Iterator[Made]:
    indices = d.below(5, 2, 3).astype(d.dtype)
    yield [indices, np.array(5), np.array([0, 1], np.float32)], {}
    yield [indices - np.array(5, d.dtype), np.array(5), np.array([2, 7], np.int64)], {"axis": 0}


@sampled("NonZero", *NUMERIC, "bool")
def non_zero(d: Draw) -> Iterator[Made]:
    yield [d(3, 5)], {}
    yield [d(0, 5)], {}


@sampled("Compress", *FEW)
def compress(d: Draw) -> Iterator[Made]:
    yield [d(3, 4), np.array([True, False, True])], {"axis": 0}
    yield [d(3, 4), np.array([False, True, True, False, True])], {}


@sampled("Unique", "float", "int64", "string")
def unique(d: Draw) -> Iterator[Made]:
    yield [d(9)], {}, 4
    yield [d(4, 2)], {"axis": 0}, 1


@sampled("EyeLike", *NUMERIC)
def eye_like(d: Draw) -> Iterator[Made]:
    yield [d(3, 4)], {}
    yield [d(3, 4)], {"k": 1, "dtype": 7}


@sampled("ReverseSequence", *NUMERIC)
def reverse_sequence(d: Draw) -> Iterator[Made]:
    yield [d(4, 3), ints(4, 2, 1)], {}
    yield [d(3, 4), ints(4, 2, 1)], {"batch_axis": 0, "time_axis": 1}


@sampled("CastLike", *NUMERIC)
def cast_like(d: Draw) -> Iterator[Made]:
    yield [d(3, 4), np.zeros((), np.float32)], {}
    yield [d(3, 4), np.zeros((), np.int32)], {}


@sampled("Resize", "float", "double", "float16")
def resize(d: Draw) -> Iterator[Made]:
    image = d(1, 2, 4, 5)
    yield [image, None, np.array([1, 1, 2, 2], np.float32)], {}
    yield [image, None, None, ints(1, 2, 7, 3)], {"mode": "linear"}
    yield [image, None, np.array([1, 1, 1.5, 2], np.float32)], {
        "mode": "linear", "coordinate_transformation_mode": "align_corners"}
    yield [image, None, None, ints(1, 2, 8, 8)], {"mode": "cubic"}


@sampled("GridSample", "float", "double")
def grid_sample(d: Draw) -> Iterator[Made]:
    grid = d.rng.uniform(-1.2, 1.2, (1, 3, 4, 2)).astype(d.dtype)
    yield [d(1, 2, 4, 5), grid], {}
    yield [d(1, 2, 4, 5), grid], {"mode": "nearest", "padding_mode": "border"}


@sampled("Det", *FLOATS[:2])
def det(d: Draw) -> Iterator[Made]:
    yield [d(3, 3)], {}
    yield [d(2, 3, 3)], {}
