"""Weights of few bits: what they are, how they are chosen, and the nodes that read them."""
