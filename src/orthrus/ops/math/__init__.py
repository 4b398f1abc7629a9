"""Operators of numbers: arithmetic, logic, reductions, linear algebra, signals."""
