"""A session over parameters, and whether these still are what it was made of.

In: tensors that a session was made over, and a session. Out: `holds`, which says of other tensors whether
they are these, unchanged. What torch counts as a write is seen always; a write that it does not count,
through `.data` or another library, is seen where it changes one of the elements looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..api.session import InferenceSession

_LOOKED_AT = 16
"""Elements of a tensor that are compared."""
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_address, _writes = torch.Tensor.data_ptr, torch.Tensor._version.__get__


class Frozen:
    """A session and what tells the parameters in it, which it does not keep alive: only their memory, so that
    no other tensor has their addresses. `taken`: the names of what else it is fed."""

    def __init__(self, parameters: Sequence[Any], session: InferenceSession) -> None:
        self.session = session
        self.taken = {value.name for value in session.get_inputs()}
        self.identities = list(map(id, parameters))
        self.addresses, self.writes = list(map(_address, parameters)), list(map(_writes, parameters))
        self.samples = [_sample(parameter) for parameter in parameters if parameter.numel()]
        self.seen = [sample.tobytes() for sample in self.samples]

    def holds(self, parameters: Sequence[Any]) -> bool:
        """Whether these are the parameters, as they were."""
        return (list(map(id, parameters)) == self.identities
                and list(map(_writes, parameters)) == self.writes
                and list(map(_address, parameters)) == self.addresses
                and [sample.tobytes() for sample in self.samples] == self.seen)


def _sample(parameter: Any) -> np.ndarray:
    """Some of the elements as integers, in the parameter's own memory."""
    extent = 1 + sum((size - 1) * stride
                     for size, stride in zip(parameter.shape, parameter.stride(), strict=True))
    step = -(-extent // _LOOKED_AT)
    some = parameter.detach().as_strided((-(-extent // step),), (step,), parameter.storage_offset())
    if some.is_complex():
        some = torch.view_as_real(some)
    return some.view(_INTEGERS[some.element_size()]).numpy()
