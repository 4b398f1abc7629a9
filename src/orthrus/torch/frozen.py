"""A session over parameters, and whether these still are what it was made of.

In: tensors that a session was made over, and a session. Out: `holds`, which says of other tensors whether
they are these, unchanged. What torch counts as a write is seen always; a write that it does not count,
through `.data` or another library, is seen where it changes one of the elements looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any

import torch

from ..api.session import InferenceSession

_LOOKED_AT = 16
"""Elements of a tensor that are compared."""
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_address, _writes = torch.Tensor.data_ptr, torch.Tensor._version.__get__


class Frozen:
    """A session and the parameters in it. `taken`: the names of what else it is fed."""

    def __init__(self, parameters: Sequence[Any], session: InferenceSession) -> None:
        self.session = session
        self.taken = {value.name for value in session.get_inputs()}
        self.parameters = list(parameters)
        self.addresses, self.writes = list(map(_address, parameters)), list(map(_writes, parameters))
        rows: dict[int, list[Any]] = {}
        for parameter in parameters:
            if parameter.numel():
                rows.setdefault(parameter.element_size(), []).append(_sample(parameter))
        self.samples = list(rows.values())
        self.seen = [self._look(views) for views in self.samples]

    def holds(self, parameters: Sequence[Any]) -> bool:
        """Whether these are the parameters, as they were."""
        return (all(map(is_, parameters, self.parameters))
                and list(map(_writes, parameters)) == self.writes
                and list(map(_address, parameters)) == self.addresses
                and all(self._look(views) == seen
                        for views, seen in zip(self.samples, self.seen, strict=True)))

    @staticmethod
    def _look(views: Sequence[Any]) -> bytes:
        return torch.cat(views).numpy().tobytes()


def _sample(parameter: Any) -> Any:
    """Some of the elements as integers, in the parameter's own memory."""
    extent = 1 + sum((size - 1) * stride
                     for size, stride in zip(parameter.shape, parameter.stride(), strict=True))
    step = -(-extent // _LOOKED_AT)
    some = parameter.detach().as_strided((-(-extent // step),), (step,), parameter.storage_offset())
    kind = _INTEGERS.get(parameter.element_size())
    return torch.view_as_real(some).reshape(-1) if kind is None else some.view(kind)
