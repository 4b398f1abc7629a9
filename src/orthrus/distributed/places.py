"""Which session runs where: processes on their share of the cores, or sessions of this process on devices.

In: devices by name, a model for each. Out: replicas that are not started yet.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from ..api.options import SessionOptions
from ..errors import Fail, InvalidArgument
from ..processors import usable
from .blocks import Pool
from .crew import DeviceSession, Providers, Replica
from .process import Process, Spec

_GPUS = {
    "cuda": "CUDAExecutionProvider",
    "rocm": "ROCMExecutionProvider",
    "hip": "ROCMExecutionProvider",
    "migraphx": "MIGraphXExecutionProvider",
}


def placed(
    devices: int | Sequence[str | Providers],
    models: Sequence[str | bytes],
    options: SessionOptions,
    pool: Pool,
    providers: Providers | None = None,
    imports: Sequence[str] = (),
) -> list[Replica]:
    """A replica of each of `models` on its device; `devices`, `providers` and `imports` as for `Replicas`.
    Models that are one object are given to processes once."""
    cores = sorted(usable())
    places: list[Any] = ["cpu"] * devices if isinstance(devices, int) else list(devices)
    if not places:
        raise InvalidArgument("no device is named", cure="Replicas(model, devices=2)")
    if "cpu" in places and not hasattr(socket, "send_fds"):
        raise Fail(
            "processes hand each other files, which this system does not know",
            cure="a session of this process, or devices by providers",
        )
    mine = [i for i, place in enumerate(places) if place == "cpu"]
    named = [(p, {}) if isinstance(p, str) else p for p in providers or ["CPUExecutionProvider"]]
    specs: dict[int, Spec] = {}
    made = []
    for i, (place, model) in enumerate(zip(places, models, strict=True)):
        if place != "cpu":
            made.append(Replica(i, DeviceSession(model, options, _providers(place)), (), str(place)))
            continue
        if id(model) not in specs:
            specs[id(model)] = spec_of(model, options, tuple(imports), pool)
        share = _share(cores, mine.index(i), len(mine))
        engine = Process(
            specs[id(model)],
            pool,
            share,
            [name for name, _ in named],
            [{k: str(v) for k, v in o.items()} for _, o in named],
        )
        made.append(Replica(i, engine, share, f"cpu {','.join(map(str, share))}"))
    return made


def spec_of(model: str | bytes, options: SessionOptions, imports: tuple[str, ...], pool: Pool) -> Spec:
    """How a process makes its session of `model`."""
    if options._initializers or options._external or options._files or options._dims_by_denotation:
        raise InvalidArgument(
            "initializers and files in session options stay in this process",
            cure="give replicas a model that holds them",
        )
    scalars = {
        name: int(value) if not isinstance(value, bool | str) else value
        for name, value in options._values.items()
    }
    entries = dict(options._entries)
    held: Any = None
    given: Any = model
    if isinstance(model, bytes):
        block, held = pool.take(len(model))
        block.memory[: len(model)] = model
        given = block, len(model)
    return Spec(given, scalars, entries, imports, held)


def _share(cores: Sequence[int], i: int, count: int) -> list[int]:
    """The cores of replica `i` of `count`: disjoint while there are enough."""
    if count > len(cores):
        return [cores[i % len(cores)]]
    return list(cores[i * len(cores) // count : (i + 1) * len(cores) // count])


def _providers(place: str | Providers) -> Providers:
    """The providers that a device's name stands for."""
    if not isinstance(place, str):
        return place
    kind, _, number = place.partition(":")
    if kind not in _GPUS or not (number or "0").isdigit():
        raise InvalidArgument(
            f"no device is called {place!r}", expected="cpu, cuda:0, rocm:0, migraphx:0, or providers"
        )
    return [(_GPUS[kind], {"device_id": number or "0"}), "CPUExecutionProvider"]
