"""SpaceToDepth that early YOLO models write as seven nodes, by its first Reshape."""

from __future__ import annotations

from typing import Any

import onnx

from ....optimize.pattern import templates
from ....optimize.rules.facts import rank
from ...fusions import Fusion
from ...fusions.fusion import Makers, Nodes
from ...onnx_model import ONNXModel

_ORDERS = [0, 1, 2, 4, 3, 5], [0, 1, 3, 2], [0, 2, 1, 3, 4]


def _moved(op: Any, x: Any, u: Any, v: Any, w: Any, y: Any) -> Any:
    """Blocks cut out, laid flat, taken to the front, and joined with the channels."""
    cut = op.keep(op.Reshape(x, ...), u)
    flat = op.keep(op.Reshape(op.Transpose(cut, perm=_ORDERS[0]), ...), v)
    front = op.keep(op.Reshape(op.Transpose(flat, perm=_ORDERS[1]), ...), w)
    return op.keep(op.Reshape(op.Transpose(front, perm=_ORDERS[2]), ...), y)


_SPACE_TO_DEPTH = templates(_moved)


class FusionSpaceToDepth(Fusion):
    """Blocks of space moved to the channels become one node."""

    def __init__(self, model: ONNXModel) -> None:
        super().__init__(model, "SpaceToDepth", "Reshape")

    def fuse(self, node: onnx.NodeProto, input_name_to_nodes: Nodes, output_name_to_node: Makers) -> None:
        """Fuse the SpaceToDepth that begins with `node`, if any."""
        found = self.find_pattern(_SPACE_TO_DEPTH, node, output_name_to_node, _fits)
        if found is not None:
            self.replace(found, [found.bound["x"].name], blocksize=found.bound["u"].shape[3])


def _fits(bound: dict[str, Any]) -> bool:
    """Whether the shapes between are those of square blocks. The batch, the same throughout, need not be
    known."""
    inner = [bound[name] for name in "xuvwy"]
    if [rank(value) for value in inner] != [4, 6, 4, 5, 4] or any(
            len(value.uses) != 1 or value.graph_outputs for value in inner[1:4]):
        return False
    x, cut, *others = (value.shape[1:] for value in inner)
    if not all(isinstance(size, int) for size in (*x, cut[2])) or not cut[2]:
        return False
    channels, height, width = x
    side = cut[2]
    rows, columns = height // side, width // side
    expected = [(channels, rows, side, columns, side), (channels, rows * columns, side ** 2),
                (channels, side ** 2, rows, columns), (channels * side ** 2, rows, columns)]
    return [cut, *others] == expected
