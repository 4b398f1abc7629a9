"""Compiled parts as bytes that need no compiler: what sessions keep, what compiled models hold, what C
runs."""
