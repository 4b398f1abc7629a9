"""Operators of ai.onnx.ml: encoders, linear models, tree ensembles."""
