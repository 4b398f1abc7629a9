"""Shapes of models: inferred, written down, and sizes for open dimensions."""
