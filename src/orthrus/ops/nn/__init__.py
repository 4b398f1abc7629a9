"""Operators of networks: layers, windows, attention, losses, optimizer steps."""
