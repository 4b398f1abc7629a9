"""What a call of the optimizer asks for, as the rules find it in `op.settings`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from ...ir import ElementType, No
from ...ops.schema import lookup
from ...optimize import Settings
from ...records import dataclass
from ..fusion_options import FusionOptions

PASSING = frozenset({"LayerNormalization", "RMSNormalization", "Gelu", "Swish", "Attention",
                     "GroupNormalization", "RotaryEmbedding"})
"""Operators of newer opsets that may stand in the graph for a while: each has a form of com.microsoft, or is
written out again."""


@dataclass(frozen=True)
class Asked(Settings):
    """`num_heads` and `hidden_size` are 0 where nobody knows them; `opset` is the model's, which no rule
    leaves; of the options, `only` these switches count where it names any."""

    loose_masks: ClassVar[bool] = True
    weights_apart: ClassVar[bool] = True
    wide_attention: ClassVar[bool] = True
    model_type: str
    options: FusionOptions
    num_heads: int = 0
    hidden_size: int = 0
    opset: int = 1
    only: frozenset[str] | None = None

    def on(self, switch: str) -> bool:
        """Whether a switch of the options is there and on; one of no name always is."""
        return not switch or bool(getattr(self.options, switch, False))

    def option(self, name: str) -> Any:
        """An attribute of the options, None where they have none of this name."""
        return getattr(self.options, name, None)

    def refusal(self, domain: str, name: str, inputs: Sequence[Any]) -> str | None:
        if domain != "" or name == "LayerNormalization":
            return None
        if name in PASSING and any(getattr(v, "elem", None) == ElementType.DOUBLE for v in inputs):
            return f"no form of {name} takes double"
        if name in PASSING or not isinstance(lookup("", name, self.opset), No):
            return None
        return f"{name} is not in opset {self.opset}"
