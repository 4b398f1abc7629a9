"""Kernels compiled when this package is built: `networks` says of which graphs, `build` makes the pack.

    python -m orthrus.native.pack FILE [MACHINE ...]     # the machines' names; "all" for the common ones
"""
