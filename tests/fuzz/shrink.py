"""Failing subjects made small: fewer feeds, outputs, nodes and attributes, smaller sizes, plainer values, a
plainer setting. Each change stays where the same kind of finding remains.

`stored` and `loaded` keep a subject in a folder, from which `python -m tests.fuzz --replay FOLDER` runs it.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from fuzz.applications import fitted
from fuzz.judge import Oracle
from fuzz.small import Feeds, Setting, Subject
from fuzz.steps import info

Test = Callable[[Subject], str | None]
"""The kind of finding that a subject gives, or None."""


def shrunk(subject: Subject, kind: str, test: Test, seconds: float = 60) -> Subject:
    """The smallest subject found within `seconds` that still gives `kind`."""
    end = time.monotonic() + seconds
    better = True
    while better and time.monotonic() < end:
        better = False
        for smaller in _candidates(subject):
            if time.monotonic() > end:
                break
            if _size(smaller) < _size(subject) and _kind(test, smaller) == kind:
                subject, better = smaller, True
                break
    return subject


def _kind(test: Test, subject: Subject) -> str | None:
    try:
        return test(subject)
    except Exception:
        return None


def _size(s: Subject) -> tuple[float, ...]:
    g = s.model.graph
    elements = [a for f in s.feeds for a in f.values()] + [numpy_helper.to_array(t) for t in g.initializer]
    odd = sum(
        len(np.unique(a.astype(str))) + np.sum([len(x) for x in a.ravel().astype(str)]) / 100
        for a in elements
    )
    ends = (len(s.feeds), len(g.output), len(g.node), sum(len(n.attribute) + len(n.input) for n in g.node))
    plain = sum(getattr(s.setting, f.name) != getattr(_PLAIN, f.name) for f in dataclasses.fields(Setting))
    return (
        sum(ends) + 0.1 * len(g.initializer) + 0.2 * len(g.input),
        plain,
        sum(a.size for a in elements),
        odd,
    )


_PLAIN = Setting("ORT_DISABLE_ALL", 1, 0, None)


def _candidates(s: Subject) -> Iterator[Subject]:
    for i in range(len(s.feeds)):
        yield dataclasses.replace(s, feeds=[s.feeds[i]], kinds=[s.kinds[i]])
    for i in range(len(s.feeds)) if len(s.feeds) > 2 else ():
        yield dataclasses.replace(
            s, feeds=s.feeds[:i] + s.feeds[i + 1 :], kinds=s.kinds[:i] + s.kinds[i + 1 :]
        )
    graph = s.model.graph
    for i in range(len(graph.output)) if len(graph.output) > 1 else ():
        yield _with(s, lambda g, i=i: _keep(g.output, [g.output[i]]))  # type: ignore[misc]
    for field in dataclasses.fields(Setting):
        if getattr(s.setting, field.name) != getattr(_PLAIN, field.name):
            changed = {field.name: getattr(_PLAIN, field.name)}
            yield dataclasses.replace(s, setting=dataclasses.replace(s.setting, **changed))
    yield from _fewer_nodes(s)
    for i, node in enumerate(graph.node):
        for k in range(len(node.attribute)):
            yield _with(s, lambda g, i=i, k=k: g.node[i].attribute.pop(k))  # type: ignore[misc]
        for k in range(len(node.input)):
            if node.input[k]:
                yield _with(s, lambda g, i=i, k=k: _leave_out(g.node[i], k))  # type: ignore[misc]
    yield from _smaller(s)
    yield from _plainer(s)


def _keep(field: Any, kept: list[Any]) -> None:
    copies = [type(item).FromString(item.SerializeToString()) for item in kept]
    del field[:]
    field.extend(copies)


def _leave_out(node: onnx.NodeProto, k: int) -> None:
    node.input[k] = ""
    while node.input and not node.input[-1]:
        node.input.pop()


def _with(s: Subject, change: Callable[[onnx.GraphProto], Any]) -> Subject:
    """A copy with a changed graph, without what nothing reads any more."""
    model = onnx.ModelProto()
    model.CopyFrom(s.model)
    change(model.graph)
    graph = model.graph
    while True:
        read = {n for node in graph.node for n in _read(node)} | {v.name for v in graph.output}
        dead = [n for n in graph.node if not read & set(n.output)]
        if not dead:
            break
        _keep(graph.node, [n for n in graph.node if read & set(n.output)])
    _keep(graph.input, [v for v in graph.input if v.name in read])
    _keep(graph.initializer, [t for t in graph.initializer if t.name in read])
    given = {v.name for v in graph.input}
    return dataclasses.replace(
        s, model=model, feeds=[{k: a for k, a in f.items() if k in given} for f in s.feeds]
    )


def _read(node: onnx.NodeProto) -> Iterator[str]:
    yield from node.input
    for a in node.attribute:
        for body in (a.g, *a.graphs):
            for inner in body.node:
                yield from _read(inner)
            yield from (v.name for v in body.output)


def _fewer_nodes(s: Subject) -> Iterator[Subject]:
    """A node less: its results are outputs no more, or come as feeds."""
    graph = s.model.graph
    made = {n for node in graph.node for n in node.output}
    last = graph.node[-1] if graph.node else None
    if last is not None and len(graph.node) > 1:
        for name in last.input:
            if name in made:
                yield _with(s, lambda g, n=name: _end_at(g, n))  # type: ignore[misc]
    for node in reversed(graph.node):
        if len(graph.node) > 1 and (known := _values(s, list(node.output))) is not None:
            feeds = [
                {**f, **{k: v for k, v in extra.items() if v is not None}}
                for f, extra in zip(s.feeds, known, strict=True)
            ]
            yield _with(dataclasses.replace(s, feeds=feeds), lambda g, n=node, e=known[0]: _feed(g, n, e))
    for node in graph.node:
        for name in node.input:
            if name and len(node.output) == 1:
                yield _with(s, lambda g, n=node, x=name: _bypass(g, n, x))  # type: ignore[misc]


def _end_at(g: onnx.GraphProto, name: str) -> None:
    del g.output[:]
    g.output.append(helper.make_empty_tensor_value_info(name))
    g.node.pop()


def _values(s: Subject, names: list[str]) -> list[dict[str, Any]] | None:
    """What a node's results are for each feed, by the definitions."""
    names = [n for n in names if n]
    model = onnx.ModelProto()
    model.CopyFrom(s.model)
    del model.graph.output[:]
    model.graph.output.extend(helper.make_empty_tensor_value_info(n) for n in names)
    oracle = Oracle(model, None)
    found = [oracle.definitions(f) for f in s.feeds]
    if not all(isinstance(r, list) and all(isinstance(a, np.ndarray) for a in r) for r in found):
        return None
    return [dict(zip(names, r, strict=True)) for r in found]


def _feed(g: onnx.GraphProto, node: onnx.NodeProto, values: dict[str, Any]) -> None:
    _keep(g.node, [n for n in g.node if n != node])
    g.input.extend(info(name, a.dtype, [None] * a.ndim) for name, a in values.items())


def _bypass(g: onnx.GraphProto, node: onnx.NodeProto, name: str) -> None:
    (gone,) = node.output
    _keep(g.node, [n for n in g.node if n != node])
    for other in g.node:
        for k, n in enumerate(other.input):
            if n == gone:
                other.input[k] = name
    for v in g.output:
        if v.name == gone:
            v.name = name


def _smaller(s: Subject) -> Iterator[Subject]:
    """Every axis of one size has a smaller one, or one axis of one array alone."""
    arrays = [a for f in s.feeds for a in f.values()]
    arrays += [numpy_helper.to_array(t) for t in s.model.graph.initializer]
    for n in sorted({d for a in arrays for d in a.shape if d > 1}, reverse=True):
        for small in sorted({1, 2, n - 1}):
            if small < n:
                yield _mapped(
                    s, lambda _, a, n=n, m=small: fitted(a, tuple(m if d == n else d for d in a.shape))
                )
    for name in sorted({k for f in s.feeds for k in f} | {t.name for t in s.model.graph.initializer}):
        for axis in range(4):
            yield _mapped(s, lambda k, a, name=name, i=axis: _cut(a, i) if k == name else a)


def _cut(a: np.ndarray, axis: int) -> np.ndarray:
    return a[(slice(None),) * axis + (slice(0, -1),)] if axis < a.ndim and a.shape[axis] > 1 else a


def _plainer(s: Subject) -> Iterator[Subject]:
    names = sorted({k for f in s.feeds for k in f} | {t.name for t in s.model.graph.initializer})
    for simple in (_zeros, _ones, _counted, _rounded):
        for name in (None, *names):
            yield _mapped(s, lambda k, a, f=simple, n=name: f(a) if n in (None, k) else a)


def _zeros(a: np.ndarray) -> np.ndarray:
    return np.zeros_like(a) if a.dtype != object else a


def _ones(a: np.ndarray) -> np.ndarray:
    return np.ones_like(a) if a.dtype != object else a


def _counted(a: np.ndarray) -> np.ndarray:
    return np.arange(a.size).reshape(a.shape).astype(a.dtype) if a.dtype.kind in "fiu" else a


def _rounded(a: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.round(a) if a.dtype.kind == "f" else a


def _mapped(s: Subject, change: Callable[[str, np.ndarray], np.ndarray]) -> Subject:
    model = onnx.ModelProto()
    model.CopyFrom(s.model)
    for t in model.graph.initializer:
        t.CopyFrom(
            numpy_helper.from_array(np.ascontiguousarray(change(t.name, numpy_helper.to_array(t))), t.name)
        )
    feeds = [{k: change(k, a) for k, a in f.items()} for f in s.feeds]
    shapes = feeds[0] if feeds else {}
    for v in model.graph.input:
        dims = v.type.tensor_type.shape.dim
        for d, n in zip(dims, shapes[v.name].shape if v.name in shapes else (), strict=False):
            if d.HasField("dim_value"):
                d.dim_value = n
    return dataclasses.replace(s, model=model, feeds=feeds)


def forked(run: Callable[[], str | None], seconds: float = 20) -> str | None:
    """What `run` says in a child process; "crash" or "hang" where it cannot say it any more."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(read)
            faulthandler.disable()
            os.write(write, (run() or "").encode()[:4000])
        finally:
            os._exit(0)
    os.close(write)
    ready, _, _ = select.select([read], [], [], seconds)
    said = os.read(read, 1 << 16) if ready else b""
    os.close(read)
    if not ready:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not ready:
        return "hang"
    return "crash" if os.WIFSIGNALED(status) else said.decode() or None


def stored(subject: Subject, folder: Path, text: str, seed: str = "") -> None:
    """Write a subject to a folder, with what is wrong with it and how to run it."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(subject.model, str(folder / "model.onnx"))
    packed = {
        f"{i}/{k}": a if a.dtype.kind in "fiubcO" else a.astype(np.float32)
        for i, f in enumerate(subject.feeds)
        for k, a in f.items()
    }
    types = {f"{i}/{k}": a.dtype.name for i, f in enumerate(subject.feeds) for k, a in f.items()}
    np.savez(folder / "feeds.npz", **packed)  # type: ignore[arg-type]
    (folder / "subject.json").write_text(
        json.dumps(
            {
                "name": subject.name,
                "kinds": subject.kinds,
                "rtol": subject.rtol,
                "atol": subject.atol,
                "types": types,
                "setting": dataclasses.asdict(subject.setting),
            }
        )
    )
    (folder / "README").write_text(
        f"{text}\n\npython -m tests.fuzz --replay {folder}\n{seed}\n\n{onnx.printer.to_text(subject.model)}\n"
    )


def loaded(folder: Path) -> Subject:
    """The subject that `stored` wrote."""
    import ml_dtypes

    meta = json.loads((folder / "subject.json").read_text())
    feeds: list[Feeds] = [{} for _ in meta["kinds"]]
    with np.load(folder / "feeds.npz", allow_pickle=True) as packed:
        for key in packed.files:
            i, name = key.split("/", 1)
            dtype = meta["types"][key]
            feeds[int(i)][name] = packed[key].astype(getattr(ml_dtypes, dtype, dtype))
    return Subject(
        meta["name"],
        onnx.load(str(folder / "model.onnx")),
        feeds,
        Setting(**meta["setting"]),
        meta["rtol"],
        meta["atol"],
        meta["kinds"],
    )
