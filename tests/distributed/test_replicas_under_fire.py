"""Processes that are killed or stopped at random moments, at work and while they start, one, two at once and
the last one: every request is answered right, once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from skips import needs

import orthrus as ort
from orthrus import errors
from orthrus.demo import MODEL, samples
from orthrus.distributed import Replicas
from orthrus.distributed.crew import Piece

pytestmark = needs("Linux")
REQUESTS, KILLS, STOPS, CALLERS = 1000, 100, 4, 3
IMAGES, _ = samples()
WANT: Any = ort.InferenceSession(MODEL).run(None, {"image": IMAGES})


def right(got: list[Any], first: int, last: int) -> None:
    np.testing.assert_array_equal(got[0], WANT[0][first:last])
    np.testing.assert_allclose(got[1], WANT[1][first:last], rtol=1e-4, atol=1e-6)


class Gun:
    """Kills `kills` processes of replicas, each once, spread at random over the requests: whichever runs or
    starts, now and then all that there are at once; or stops one, which then hangs."""

    def __init__(self, replicas: Replicas, kills: int, stops: int, seed: int) -> None:
        self.replicas, self.kills, self.drawn = replicas, kills, random.Random(seed)
        self.due = sorted(self.drawn.randrange(REQUESTS * 9 // 10) for _ in range(kills + stops))
        self.stopping = set(self.drawn.sample(range(kills + stops), stops))
        self.hit, self.met = set[int](), Counter[str]()
        self.asked, self.over = 0, threading.Event()
        self.thread = threading.Thread(target=self.shoot, daemon=True)
        self.thread.start()

    def shoot(self) -> None:
        for number, due in enumerate(self.due):
            while self.asked < due and not self.over.is_set():
                time.sleep(0.0005)
            time.sleep(self.drawn.random() * 0.01)
            stop = number in self.stopping
            while not self.over.is_set() and not self.one(stop, all_at_once=self.drawn.random() < 0.15):
                time.sleep(0.001)

    def one(self, stop: bool, all_at_once: bool) -> bool:
        """Whether a process was there to be hit that had not been hit before. One that starts is not stopped:
        that it hangs is seen only after minutes."""
        found = [(pid, each.ready) for each in self.replicas.replicas
                 if (pid := each.pid) is not None and pid not in self.hit and (each.ready or not stop)]
        if not found:
            return False
        self.drawn.shuffle(found)
        if not stop and len(found) > 1 and all_at_once:
            self.met["together"] += 1
        else:
            del found[1:]
        for pid, ready in found:
            self.hit.add(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP if stop else signal.SIGKILL)
                self.met["stopped" if stop else "at work" if ready else "starting"] += 1
        return True


@pytest.mark.thorough
def test_a_thousand_requests_under_fire() -> None:
    put, answered, wrong = list[Piece](), list[int](), list[BaseException]()
    with Replicas(MODEL, devices=2, time_limit=5) as replicas:
        crew = replicas._crew
        real = crew.put

        def counted(piece: Piece) -> Piece:
            put.append(piece)
            return real(piece)

        crew.put = counted  # type: ignore[method-assign]
        gun = Gun(replicas, KILLS, STOPS, 5)

        def ask(caller: int) -> None:
            drawn = random.Random(caller)
            try:
                while gun.asked < REQUESTS:
                    gun.asked += 1
                    number = gun.asked
                    count = drawn.randint(1, len(IMAGES))
                    first = drawn.randint(0, len(IMAGES) - count)
                    feeds = {"image": IMAGES[first:first + count]}
                    if number % 3:
                        got = replicas.run(None, feeds)
                    else:
                        got = replicas.submit(None, feeds).result(300)
                    right(got, first, first + count)
                    answered.append(number)
            except BaseException as error:
                wrong.append(error)
                gun.asked = REQUESTS

        callers = [threading.Thread(target=ask, args=(i,), daemon=True) for i in range(CALLERS)]
        for each in callers:
            each.start()
        for each in callers:
            each.join(400)
        gun.over.set()
        gun.thread.join(60)
        assert not wrong, wrong
        assert not any(each.is_alive() for each in callers), "a request was never answered"
        assert len(answered) >= REQUESTS and all(piece.future.done() for piece in put)
        assert sum(r.requests for r in replicas.replicas) == len(put), "each part was answered once"
        killed = gun.met["at work"] + gun.met["starting"]
        assert killed >= KILLS and gun.met["stopped"] == STOPS, gun.met
        assert gun.met["starting"] >= 5 and gun.met["together"] >= 5 and gun.met["at work"] >= 20, gun.met


def test_the_last_one_is_killed_again_and_again() -> None:
    with Replicas(MODEL, devices=1, time_limit=60) as replicas:
        for _ in range(3):
            waiting = [replicas.submit(None, {"image": IMAGES[i:i + 3]}) for i in range(2)]
            pid = replicas.replicas[0].pid
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
            for i, future in enumerate(waiting):
                right(future.result(120), i, i + 3)
        assert 1 <= replicas.replicas[0].restarts <= 3


@pytest.mark.parametrize("seen", [False, True])
def test_none_that_starts_again(tmp_path: Path, seen: bool) -> None:
    """A model that is gone: what is left goes on, and with the last one all that waits hears why. `seen`: the
    end of a process can be seen before it is asked for anything."""
    path = tmp_path / "model.onnx"
    path.write_bytes(Path(MODEL).read_bytes())
    with Replicas(path, devices=2, time_limit=60) as replicas:
        path.unlink()
        first, last = replicas.replicas
        assert first.pid is not None and last.pid is not None
        os.kill(first.pid, signal.SIGKILL)
        while seen and first.engine.alive():
            time.sleep(0.001)
        for i in range(6):
            right(replicas.run(None, {"image": IMAGES[i:i + 20]}), i, i + 20)
        assert replicas.replicas == [last]
        os.kill(last.pid, signal.SIGKILL)
        while seen and last.engine.alive():
            time.sleep(0.001)
        waiting = [threading.Thread(target=lost, args=(replicas,)) for _ in range(4)]
        for each in waiting:
            each.start()
        for each in waiting:
            each.join(120)
            assert not each.is_alive()
        lost(replicas)


def lost(replicas: Replicas) -> None:
    with pytest.raises(errors.Fail, match="no replica is left"):
        replicas.run(None, {"image": IMAGES[:5]})
