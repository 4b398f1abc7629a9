"""Weight-only quantization of MatMul by rounding, k-quant and GPTQ, with the names of Intel's tool."""

from .weight_only import gptq_quantize, rtn_quantize

__all__ = ["gptq_quantize", "rtn_quantize"]
