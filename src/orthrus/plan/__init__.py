"""Kernels to plan: which call runs when, on which slots, and when a slot is free again.

In: a `Placement` and the providers. Out: `Program`, which holds integers and callables only; everything a run
needs to know of the graph has become a slot number. Slot 0 is the absent value. `arena` turns a program and
concrete input shapes into one whose intermediate results have their places in one block of memory.
"""

from .arena import Arena, plan_arena
from .program import ABSENT, TRASH, Body, Code, Program, Step, build, code, taker

__all__ = ["ABSENT", "TRASH", "Arena", "Body", "Code", "Program", "Step", "build", "code", "plan_arena",
           "taker"]
