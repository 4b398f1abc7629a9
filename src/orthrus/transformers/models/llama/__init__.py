"""Llama and its kin (Mistral, Qwen, Phi …) as ONNX: one model for the prompt and for what follows."""
