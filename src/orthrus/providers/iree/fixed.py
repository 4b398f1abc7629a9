"""A part with open dimensions as one compiled module for each tuple of input shapes.

In: a part, and what makes a kernel of a part whose shapes are known. Out: `FixedShapes`, whose `start` begins
a run by the module for the shapes of its arrays, compiled when they come for the first time. Code for known
sizes is several times faster than code for any size, and nothing is left for it to assume.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...errors import EPFail, Fail
from ...ir import No
from ...kernels import Kernel, Part
from ...load import load
from ...recent import Recent
from .model import model_bytes

Shape = tuple[int, ...]
_LOADED = 8
"""Modules of one part that stay loaded; the others are in the cache on disk."""


def is_open(part: Part) -> bool:
    """Whether a dimension of what comes into `part` is not known."""
    return any(not all(isinstance(d, int) for d in v.shape or ()) for v in part.inputs)


class FixedShapes:
    """The kernels of one part by the shapes of its inputs. `make`: a part of known shapes in, its kernel or
    why there is none out."""

    def __init__(self, part: Part, make: Callable[[Part], Kernel | No]) -> None:
        self.part, self.make = part, make
        self.kernels: Recent[tuple[Shape, ...], Kernel] = Recent(_LOADED)

    def kernel(self, arrays: Sequence[np.ndarray]) -> Kernel:
        """The kernel for arrays of these shapes. Raises EPFail where they do not compile, Fail where a node
        cannot take them."""
        shapes = tuple(a.shape for a in arrays)
        return self.kernels.kept(shapes, lambda: self._compiled(shapes))

    def _compiled(self, shapes: tuple[Shape, ...]) -> Kernel:
        found = self.make(fixed(self.part, shapes))
        if isinstance(found, No):
            raise EPFail(f"IREE does not compile a part for these shapes: {found.reason}", node=self.part,
                         found=", ".join(str(list(s)) for s in shapes),
                         cure="the option shapes=open, which lets such a part go to another provider")
        return found

    def __call__(self, *arrays: np.ndarray) -> Any:
        """The results for `arrays`."""
        return self.kernel(arrays).run(*arrays)

    def start(self, *arrays: np.ndarray) -> Callable[[], Any]:
        """Begin a run; the function that is answered waits for it. The device has to be one that can."""
        begin = self.kernel(arrays).start
        assert begin is not None
        made: Callable[[], Any] = begin(*arrays)
        return made


def fixed(part: Part, shapes: Sequence[Shape]) -> Part:
    """`part` for inputs of these shapes: the same nodes, every shape that follows inferred anew. Raises Fail
    where a node cannot take them."""
    import onnx

    raw = model_bytes(part)
    if isinstance(raw, No):
        raise Fail(raw.reason, node=part)
    model = onnx.ModelProto.FromString(raw)
    for info, shape in zip(model.graph.input, shapes, strict=True):
        dims = info.type.tensor_type.shape
        dims.Clear()
        for size in shape:
            dims.dim.add().dim_value = size
    for info in (*model.graph.output, *model.graph.value_info):
        info.type.tensor_type.ClearField("shape")
    graph = load(model)
    return replace(part, nodes=graph.nodes, inputs=graph.inputs, outputs=graph.outputs, info=graph.info)
