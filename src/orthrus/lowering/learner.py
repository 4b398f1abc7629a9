"""The formulas of a part, and the thread that finds further ones.

In: what finds a formula, after a lowering that one would have saved. Out: plans, by the formulas there are.
The thread works within the limits of the session that asked, a process that forks waits for it, and whoever
closes its part cancels it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import knobs
from ..limits import Limits, current, using
from ..locks import awaited

if TYPE_CHECKING:
    from .formula import Formula
    from .instance import Plan

log = logging.getLogger("orthrus")

FORMULAS = 16
"""Formulas a part keeps at most."""

_ENOUGH, _SELDOM = 8, 16
"""Formulas that served nothing yet, or could not be found, with which a part looks for more seldom."""

_PATIENCE = 2.0
"""Seconds that closing waits for what looks for a formula to notice, between two of the part's nodes."""


class Learner:
    """`formulas`: those of a part, the last one used first; `unlearnt`: why others were not found. `closed`:
    whether nobody needs them any more; `background`: whether a thread looks for them, lest a run has to wait;
    `learning`: the process in which one is looked for, else 0."""

    closed = False
    background = True

    def __init__(self, name: str) -> None:
        self.name = name
        self.formulas: list[Formula] = []
        self.unlearnt: list[str] = []
        self.learning = self.missed = 0
        self.thread: threading.Thread | None = None

    def plan(self, key: tuple[Any, ...]) -> Plan | None:
        """The plan for these shapes, where a formula holds for them."""
        for i, formula in enumerate(self.formulas):
            made = formula.plan(key)
            if made is not None:
                formula.served = True
                self.formulas.insert(0, self.formulas.pop(i))
                return made
        return None

    def learn(self, find: Callable[[], Formula]) -> None:
        """Get a formula from `find`, unless one is being looked for or it seems to be no use."""
        self.missed += 1
        idle = sum(not formula.served for formula in self.formulas) + len(self.unlearnt)
        if self.closed or self.learning == os.getpid() or (idle >= _ENOUGH and self.missed % _SELDOM):
            return
        del self.formulas[FORMULAS - 1:]
        self.learning = os.getpid()
        if knobs.SHAPES >= 2 or not self.background:
            self._learn(find, current())
            return
        self.thread = thread = awaited(threading.Thread(target=self._learn, args=(find, current()),
                                                        name="orthrus formula"))
        try:
            thread.start()
        except RuntimeError as error:
            self.unlearnt.append(str(error))
            self.learning, self.thread = 0, None

    def _learn(self, find: Callable[[], Formula], limits: Limits) -> None:
        try:
            with using(limits), np.errstate(all="ignore"):
                self.formulas.insert(0, find())
        except Exception as error:
            self.unlearnt.append(f"{type(error).__name__}: {error}")
            log.debug("%s: no formula: %s", self.name, self.unlearnt[-1])
        finally:
            self.learning, self.thread = 0, None

    def close(self) -> None:
        """End what looks for a formula."""
        self.closed = True
        thread = self.thread
        if thread is not None and thread.ident is not None and thread is not threading.current_thread():
            thread.join(_PATIENCE)
