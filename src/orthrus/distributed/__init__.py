"""Models on several devices and machines: `orthrus.distributed.ray` runs them on a cluster of Ray's.

In: models and rows. Out: rows, every one once. Everything here stands on the public API; nothing below knows
of it, and no engine is imported before it is used.
"""
