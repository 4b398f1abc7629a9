"""Kernels to plan: which call runs when, on which slots, and when a slot is free again.

In: a `Placement` and the providers. Out: `Program`: steps that are numbers, of kernels, slots and
devices, with the copies between devices among them. Slot 0 is the absent value. `arena` turns a program and
concrete input shapes into one whose intermediate results have their places in one block of memory.
"""

from .arena import Arena, plan_arena
from .build import build
from .program import ABSENT, TRASH, Body, Call, Code, Program, Step, taker

__all__ = ["ABSENT", "TRASH", "Arena", "Body", "Call", "Code", "Program", "Step", "build", "plan_arena",
           "taker"]
