"""Quantization for Qualcomm's QNN execution provider: models made for it here run on a device with
onnxruntime."""

from __future__ import annotations

from .preprocess import qnn_preprocess_model
from .quant_config import get_qnn_qdq_config

__all__ = ["get_qnn_qdq_config", "qnn_preprocess_model"]
