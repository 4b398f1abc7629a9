"""Tokens from any exported decoder: greedy, drawn or by beams, one prompt or several.

    import orthrus
    print(orthrus.generate("model.onnx", "Once upon a time", tokenizer=tokenizer).texts[0])

In: a model whose inputs are recognized by their names, with a cache of past keys and values that grows, one
of fixed size, or none; prompts as text or as tokens. Out: tokens, all at once from `generate` or one at a
time from `stream`. The cache is handed from run to run as it is and never copied by Python, but where beams
change their order. `Decoder` is the model made ready, to be used more than once.
"""

from __future__ import annotations

from .decoder import Decoder
from .loop import Generated, Token, generate, stream
from .signature import Cache, Signature

__all__ = ["Cache", "Decoder", "Generated", "Signature", "Token", "generate", "stream"]
